// One table entry per dataset: name, defaults (which are also the list of options and their types), factory, items, description.
#include "datasets/registry.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/names.h"
#include "datasets/digits.h"
#include "datasets/idx.h"
#include "datasets/image_folder.h"
#include "datasets/imdb.h"
#include "datasets/opinions.h"
#include "datasets/point_clouds.h"
#include "datasets/shapes.h"
#include "datasets/silhouettes.h"
#include "datasets/translation.h"

namespace sinkgrad {
namespace {

using nlohmann::json;

/// The value of an enumeration that has the text of option `key`; `names` in its order.
template <class E>
E choice(const json& options, const char* key, const std::vector<std::string>& names) {
  const std::string& text = options[key].get_ref<const std::string&>();
  const auto found = std::find(names.begin(), names.end(), text);
  require<InputError>(found != names.end(), "data: unknown ", key, " '", text, "'", what_there_is(text, names));
  return static_cast<E>(found - names.begin());
}

/// Both splits of a collection of class C, which they share.
template <class C, class Collection>
DataSplits share(Collection collection, const typename C::Options& options) {
  const auto shared = std::make_shared<const Collection>(std::move(collection));
  return {std::make_unique<C>(shared, C::Split::train, options), std::make_unique<C>(shared, C::Split::test, options)};
}

DataSplits make_images(const std::string& name, const json& options, const std::vector<std::string>& class_names,
                       const DataDescription& description) {
  const std::filesystem::path folder = data_folder(options["folder"]);
  const auto split = [&](const char* file_prefix, const char* limit) {
    return std::make_unique<ImageClassification>(
        folder, file_prefix, ImageClassification::Options{name, class_names, options["mean"], options["std"], options[limit], description.origin});
  };
  DataSplits splits{split("train", "limit_train"), split("t10k", "limit_test")};
  require<InputError>(splits.train->item_shape() == splits.test->item_shape(), folder.string(), ": training images ", splits.train->item_shape(),
                      " and test images ", splits.test->item_shape(), " must have one shape");
  return splits;
}

DataSplits make_mnist(const json& options) {
  return make_images("mnist", options, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, mnist_description());
}

DataSplits make_fashion_mnist(const json& options) {
  return make_images("fashion-mnist", options, {"t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"},
                     fashion_mnist_description());
}

ItemSpec mnist_item(const json&) { return {{1, 28, 28}, 10}; }

DataSplits make_shapes(const json& options) {
  SyntheticShapes::Options o;
  o.points = options["points"];
  o.noise = options["noise"];
  o.pose = choice<SyntheticShapes::Pose>(options, "pose", {"fixed", "upright", "any"});
  o.augment = options["augment"];
  o.seed = options["seed"];
  return {std::make_unique<SyntheticShapes>("train", options["train"], o), std::make_unique<SyntheticShapes>("test", options["test"], o)};
}

ItemSpec shapes_item(const json& options) { return {{options["points"], 3}, 12}; }

DataDescription shapes_description() {
  return {.summary = "shapes: clouds of points on twelve surfaces, drawn when they are needed", .layout = "no files"};
}

DrawnImages::Options drawn_options(const json& options) { return {.augment = options["augment"], .seed = options["seed"]}; }

DataSplits make_digits(const json& options) {
  const auto split = [&](const char* name) { return std::make_unique<SyntheticDigits>(name, options[name], drawn_options(options)); };
  return {split("train"), split("test")};
}

DataDescription digits_description() {
  return {.summary = "digits: handwriting like MNIST's, drawn by strokes when it is needed", .layout = "no files"};
}

DataSplits make_silhouettes(const json& options) {
  const auto split = [&](const char* name) {
    return std::make_unique<SyntheticSilhouettes>(name, options[name], options["size"], drawn_options(options));
  };
  return {split("train"), split("test")};
}

ItemSpec silhouettes_item(const json& options) { return {{3, options["size"], options["size"]}, 8}; }

DataDescription silhouettes_description() {
  return {.summary = "silhouettes: colour images of eight silhouettes, drawn when they are needed", .layout = "no files"};
}

PointClouds::Options cloud_options(const char* name, const json& options, PointClouds::Subset subset) {
  return {.name = name,
          .points = options["points"],
          .subset = subset,
          .normalise = choice<PointClouds::Normalise>(options, "normalise", {"none", "standardise", "unit_sphere"}),
          .augment = choice<PointClouds::Augment>(options, "augment", {"none", "rotate_scale", "dropout_scale_shift"}),
          .seed = options["seed"]};
}

MeshSampling mesh_sampling(const json& options) { return {.points = options["sampled"], .seed = options["seed"], .cache_folder = options["cache"]}; }

DataSplits make_modelnet40(const json& options) {
  const PointClouds::Options cloud = cloud_options("modelnet40", options, PointClouds::Subset::strided);
  const std::filesystem::path folder = data_folder(options["folder"]), h5 = folder / "ModelNet40_cloud.h5";
  std::error_code error;
  return share<PointClouds>(std::filesystem::exists(h5, error) ? read_cloud_h5(h5, options["cache"])
                                                               : read_split_meshes(folder, mesh_sampling(options), options["skip_glued"]),
                            cloud);
}

DataSplits make_modelnet40_2048(const json& options) {
  const PointClouds::Options cloud = cloud_options("modelnet40-2048", options, PointClouds::Subset::first);
  return share<PointClouds>(read_ply_h5(data_folder(options["folder"]), options["cache"]), cloud);
}

DataSplits make_labeleddb(const json& options) {
  const PointClouds::Options cloud = cloud_options("labeleddb", options, PointClouds::Subset::strided);
  return share<PointClouds>(
      read_flat_meshes(data_folder(options["folder"]), mesh_sampling(options), options["test_per_class"], options["drop_duplicates"]), cloud);
}

ItemSpec modelnet40_item(const json& options) { return {{options["points"], 3}, 40}; }
ItemSpec labeleddb_item(const json& options) { return {{options["points"], 3}, 19}; }

DataSplits make_cats_dogs(const json& options) {
  const std::vector<std::string> policies = {"convert", "skip", "refuse"};
  return share<ImageFolder>(read_images(data_folder(options["folder"]), {.size = options["size"],
                                                                         .on_broken = choice<FilePolicy>(options, "on_broken", policies),
                                                                         .on_grey = choice<FilePolicy>(options, "on_grey", policies),
                                                                         .on_cmyk = choice<FilePolicy>(options, "on_cmyk", policies),
                                                                         .cache_folder = options["cache"]}),
                            {.name = "cats-dogs",
                             .test_share = options["test_share"],
                             .random_split = choice<int>(options, "split", {"random", "by_number"}) == 0,
                             .augment = options["augment"],
                             .augment_test = options["augment_test"],
                             .crop_area = options["crop_area"],
                             .mean = options["mean"],
                             .std = options["std"],
                             .seed = options["seed"]});
}

ItemSpec cats_dogs_item(const json& options) { return {{3, options["size"], options["size"]}, 2}; }

struct Entry {
  const char* name;
  json defaults;
  DataSplits (*make)(const json&);
  ItemSpec (*item)(const json&);
  DataDescription (*describe)();
};

ItemSpec imdb_item(const json& options) { return {{options["max_length"], options["vocabulary"]}, 2}; }

/// Of a data set that costs little to make.
template <DataSplits (*make)(const json&)>
ItemSpec made_up_item(const json& options) {
  const DataSplits data = make(options);
  return {data.train->item_shape(), data.train->classes()};
}

DataDescription opinions_description() {
  return {.summary = "opinions: short English reviews from a grammar of praise, blame, negation and contrast", .layout = "no files"};
}

DataDescription number_words_description() {
  return {.summary = "number_words: German number words and their English translations", .layout = "no files"};
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> list = {
      {"mnist",
       {{"folder", "mnist"}, {"mean", 0.1307}, {"std", 0.3081}, {"limit_train", 0}, {"limit_test", 0}},
       make_mnist,
       mnist_item,
       mnist_description},
      {"fashion-mnist",
       {{"folder", "/usr/share/datasets/fashion-mnist"}, {"mean", 0.2860}, {"std", 0.3530}, {"limit_train", 0}, {"limit_test", 0}},
       make_fashion_mnist,
       mnist_item,
       fashion_mnist_description},
      {"shapes",
       {{"points", 256}, {"train", 4800}, {"test", 1200}, {"noise", 0.02}, {"pose", "any"}, {"augment", false}, {"seed", 0}},
       make_shapes,
       shapes_item,
       shapes_description},
      {"digits", {{"train", 6000}, {"test", 1000}, {"augment", false}, {"seed", 0}}, make_digits, mnist_item, digits_description},
      {"silhouettes",
       {{"size", 32}, {"train", 4000}, {"test", 800}, {"augment", false}, {"seed", 0}},
       make_silhouettes,
       silhouettes_item,
       silhouettes_description},
      {"modelnet40",
       {{"folder", "ModelNet40"},
        {"cache", ""},
        {"points", 5000},
        {"normalise", "standardise"},
        {"augment", "none"},
        {"seed", 0},
        {"sampled", 10'000},
        {"skip_glued", false}},
       make_modelnet40,
       modelnet40_item,
       modelnet40_description},
      {"modelnet40-2048",
       {{"folder", "modelnet40_ply_hdf5_2048"}, {"cache", ""}, {"points", 1024}, {"normalise", "none"}, {"augment", "none"}, {"seed", 0}},
       make_modelnet40_2048,
       modelnet40_item,
       modelnet40_2048_description},
      {"labeleddb",
       {{"folder", "LabeledDB_new"},
        {"cache", ""},
        {"points", 1024},
        {"normalise", "standardise"},
        {"augment", "none"},
        {"seed", 0},
        {"sampled", 10'000},
        {"test_per_class", 5},
        {"drop_duplicates", true}},
       make_labeleddb,
       labeleddb_item,
       labeleddb_description},
      {"cats-dogs",
       {{"folder", "cats-dogs"},
        {"cache", ""},
        {"size", 224},
        {"test_share", 0.2},
        {"split", "random"},
        {"augment", true},
        {"augment_test", false},
        {"crop_area", 0.08},
        {"mean", 0.0},
        {"std", 1.0},
        {"on_broken", "refuse"},
        {"on_grey", "convert"},
        {"on_cmyk", "convert"},
        {"seed", 0}},
       make_cats_dogs,
       cats_dogs_item,
       cats_dogs_description},
      {"imdb",
       {{"folder", "imdb"},
        {"tokenizer", ""},
        {"vocabulary", 16000},
        {"max_length", 512},
        {"split", "official"},
        {"batches", "bucketed"},
        {"limit_train", 0},
        {"limit_test", 0},
        {"seed", 0},
        {"cache", ""}},
       make_imdb,
       imdb_item,
       imdb_description},
      {"translation",
       {{"folder", "translation"},
        {"source", "de"},
        {"target", "en"},
        {"train", "train"},
        {"valid", "valid"},
        {"test", "test"},
        {"subwords", 0},
        {"lower_case", false},
        {"source_words", 0},
        {"target_words", 0},
        {"max_length", 1024},
        {"cache", ""}},
       make_translation,
       translation_items,
       translation_description},
      {"number_words",
       {{"train", 10000}, {"valid", 500}, {"test", 500}, {"max_length", 64}, {"seed", 0}},
       make_number_words,
       made_up_item<make_number_words>,
       number_words_description},
      {"opinions", {{"train", 6000}, {"test", 1500}, {"seed", 0}}, make_opinions, made_up_item<make_opinions>, opinions_description},
  };
  return list;
}

const Entry& find_entry(const std::string& name) {
  for (const Entry& e : entries())
    if (name == e.name) return e;
  throw InputError(cat("unknown dataset '", name, "'", what_there_is(name, dataset_names())));
}

/// Integers may stand for real numbers, and must not be negative where an integer is wanted.
const char* wanted(const json& like) {
  if (like.is_number_integer()) return "a non-negative integer";
  return like.is_number() ? "a number" : like.is_boolean() ? "true or false" : "text";
}

bool same_type(const json& value, const json& like) {
  if (like.is_number_integer()) return value.is_number_integer() && value >= 0;
  if (like.is_number()) return value.is_number();
  return value.type() == like.type();
}

/// The defaults with these options in their place.
json complete(const Entry& entry, const json& options) {
  json all = entry.defaults;
  std::vector<std::string> known;
  for (const auto& [key, value] : all.items()) known.push_back(key);
  require<InputError>(options.is_object() || options.is_null(), "dataset '", entry.name, "': options must be a JSON object, got ", options);
  for (const auto& [key, value] : options.items()) {
    require<InputError>(all.contains(key), "dataset '", entry.name, "' has no option '", key, "'", what_there_is(key, known));
    require<InputError>(same_type(value, all[key]), "dataset '", entry.name, "': option '", key, "' must be ", wanted(all[key]), ", got ", value);
    all[key] = value;
  }
  return all;
}

}  // namespace

std::filesystem::path data_folder(const std::string& folder) {
  const char* root = std::getenv("SINKGRAD_DATA");
  return std::filesystem::path(root && *root ? root : "data") / folder;
}

std::vector<std::string> dataset_names() {
  std::vector<std::string> names;
  for (const Entry& e : entries()) names.emplace_back(e.name);
  return names;
}

json dataset_defaults(const std::string& name) { return find_entry(name).defaults; }

DataSplits make_dataset(const std::string& name, const json& options) {
  const Entry& entry = find_entry(name);
  return entry.make(complete(entry, options));
}

ItemSpec dataset_item(const std::string& name, const json& options) {
  const Entry& entry = find_entry(name);
  return entry.item(complete(entry, options));
}

DataDescription dataset_description(const std::string& name) { return find_entry(name).describe(); }

std::filesystem::path dataset_folder(const std::string& name, const json& options) {
  const json all = complete(find_entry(name), options);
  return all.contains("folder") ? data_folder(all["folder"]) : std::filesystem::path();
}

}  // namespace sinkgrad
