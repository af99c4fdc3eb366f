// One table entry per dataset: name, defaults (which are also the list of options and their types), factory.
#include "datasets/registry.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/names.h"
#include "datasets/idx.h"
#include "datasets/imdb.h"
#include "datasets/opinions.h"
#include "datasets/shapes.h"
#include "datasets/translation.h"

namespace sinkgrad {
namespace {

using nlohmann::json;

DataSplits make_images(const std::string& name, const json& options, const std::vector<std::string>& class_names, const char* source) {
  const std::filesystem::path folder = data_folder(options["folder"]);
  const auto split = [&](const char* file_prefix, const char* limit) {
    return std::make_unique<ImageClassification>(
        folder, file_prefix, ImageClassification::Options{name, class_names, options["mean"], options["std"], options[limit], source});
  };
  DataSplits splits{split("train", "limit_train"), split("t10k", "limit_test")};
  require<InputError>(splits.train->item_shape() == splits.test->item_shape(), folder.string(), ": training images ", splits.train->item_shape(),
                      " and test images ", splits.test->item_shape(), " must have one shape");
  return splits;
}

DataSplits make_mnist(const json& options) {
  return make_images("mnist", options, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
                     "the MNIST set is needed (four idx files in one folder, http://yann.lecun.com/exdb/mnist or a mirror)");
}

DataSplits make_fashion_mnist(const json& options) {
  return make_images("fashion-mnist", options, {"t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"},
                     "the Fashion-MNIST set is needed (four idx files in one folder; the Debian package dataset-fashion-mnist puts them in "
                     "/usr/share/datasets/fashion-mnist)");
}

DataSplits make_shapes(const json& options) {
  SyntheticShapes::Options o;
  o.points = options["points"];
  o.noise = options["noise"];
  const std::string& pose = options["pose"].get_ref<const std::string&>();
  const std::vector<std::string> poses = {"fixed", "upright", "any"};  // in the order of the enumeration
  const auto found = std::find(poses.begin(), poses.end(), pose);
  require<InputError>(found != poses.end(), "shapes: unknown pose '", pose, "'", did_you_mean(pose, poses));
  o.pose = static_cast<SyntheticShapes::Pose>(found - poses.begin());
  o.augment = options["augment"];
  o.seed = options["seed"];
  return {std::make_unique<SyntheticShapes>("train", options["train"], o), std::make_unique<SyntheticShapes>("test", options["test"], o)};
}

struct Entry {
  const char* name;
  json defaults;
  DataSplits (*make)(const json&);
  ItemSpec (*items)(const json&) = nullptr;  ///< what the full set holds; null: handwritten digits
};

ItemSpec texts(const json& options) { return {{options["max_length"], options["vocabulary"]}, 2}; }

const std::vector<Entry>& entries() {
  static const std::vector<Entry> list = {
      {"mnist", {{"folder", "mnist"}, {"mean", 0.1307}, {"std", 0.3081}, {"limit_train", 0}, {"limit_test", 0}}, make_mnist},
      {"fashion-mnist",
       {{"folder", "/usr/share/datasets/fashion-mnist"}, {"mean", 0.2860}, {"std", 0.3530}, {"limit_train", 0}, {"limit_test", 0}},
       make_fashion_mnist},
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
       texts},
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
       translation_items},
      {"number_words", {{"train", 10000}, {"valid", 500}, {"test", 500}, {"max_length", 64}, {"seed", 0}}, make_number_words},
      {"opinions", {{"train", 6000}, {"test", 1500}, {"seed", 0}}, make_opinions},
      {"shapes", {{"points", 256}, {"train", 4800}, {"test", 1200}, {"noise", 0.02}, {"pose", "any"}, {"augment", false}, {"seed", 0}}, make_shapes},
  };
  return list;
}

const Entry& find_entry(const std::string& name) {
  for (const Entry& e : entries())
    if (name == e.name) return e;
  throw InputError(cat("unknown dataset '", name, "'", did_you_mean(name, dataset_names())));
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

ItemSpec dataset_items(const std::string& name, const json& options) {
  const Entry& entry = find_entry(name);
  json all = entry.defaults;
  if (!options.is_null()) all.update(options);
  return entry.items ? entry.items(all) : ItemSpec{};
}

json dataset_defaults(const std::string& name) { return find_entry(name).defaults; }

DataSplits make_dataset(const std::string& name, const json& options) {
  const Entry& entry = find_entry(name);
  json all = entry.defaults;
  std::vector<std::string> known;
  for (const auto& [key, value] : all.items()) known.push_back(key);
  require<InputError>(options.is_object() || options.is_null(), "dataset '", name, "': options must be a JSON object, got ", options);
  for (const auto& [key, value] : options.items()) {
    require<InputError>(all.contains(key), "dataset '", name, "' has no option '", key, "'", did_you_mean(key, known));
    require<InputError>(same_type(value, all[key]), "dataset '", name, "': option '", key, "' must be ", wanted(all[key]), ", got ", value);
    all[key] = value;
  }
  return entry.make(all);
}

}  // namespace sinkgrad
