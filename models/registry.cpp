// A new model is one entry of the table at the end: name, defaults, factory.
#include "models/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/names.h"
#include "models/point_cloud_transformer.h"
#include "models/set_transformer.h"
#include "models/text_encoder.h"
#include "models/translator.h"
#include "models/vit.h"

namespace sinkgrad {
namespace {

using Config = nlohmann::ordered_json;

struct Entry {
  Config defaults;  // without "name"
  std::function<std::unique_ptr<Model>(const Config&, const Shape& item, int64_t classes)> make;
  std::function<std::unique_ptr<DataSource>(const Config&, std::unique_ptr<DataSource>)> prepare = {};  // none: batches are right as they are
};

const std::vector<std::string> kGradients = {"unrolled", "implicit", "frozen"};

Config with_sinkhorn_defaults(Config config) {
  config.update({{"iterations", 1}, {"tolerance", 0.0}, {"gradient", "unrolled"}});
  return config;
}

SinkhornOptions sinkhorn_options(const Config& c) {
  const auto gradient = std::find(kGradients.begin(), kGradients.end(), c["gradient"].get<std::string>());
  require<InputError>(gradient != kGradients.end(), "model: gradient must be unrolled, implicit or frozen, got ", c["gradient"]);
  return {.iterations = c["iterations"], .tolerance = c["tolerance"], .gradient = static_cast<SinkhornGradient>(gradient - kGradients.begin())};
}

std::unique_ptr<Model> make_vit(const Config& c, const Shape& item, int64_t classes, MlpUse mlp) {
  require<InputError>(item.rank() == 3, "model: vit reads images (channels, height, width), got items ", item);
  return std::make_unique<Vit>(VitOptions{.channels = item[0],
                                          .height = item[1],
                                          .width = item[2],
                                          .classes = classes,
                                          .patch = c["patch"],
                                          .dim = c["dim"],
                                          .mlp_dim = c["mlp_dim"],
                                          .head_dim = c["head_dim"],
                                          .depth = c["depth"],
                                          .heads = c["heads"],
                                          .mlp = mlp,
                                          .sinkhorn = sinkhorn_options(c)});
}

std::unique_ptr<Model> make_set_transformer(const Config& c, const Shape& item, int64_t classes) {
  require<InputError>(item.rank() == 2, "model: set_transformer reads sets (points, coordinates), got items ", item);
  require<InputError>(c["dim"].get<int64_t>() % c["heads"].get<int64_t>() == 0, "model: set_transformer needs heads that divide dim, got ",
                      c["heads"], " and ", c["dim"]);
  require<InputError>(c["dropout"] < 1.0, "model: dropout must be less than 1, got ", c["dropout"]);
  SetOptions blocks{.dim = c["dim"], .heads = c["heads"], .layer_norm = c["layer_norm"], .sinkhorn = sinkhorn_options(c)};
  blocks.scale_by_model_width = c["scale_by_model_width"];
  blocks.sinkhorn.rows_sum_to_inverse_count = c["rows_sum_to_inverse_count"];
  return std::make_unique<SetTransformer>(
      SetTransformerOptions{.input_dim = item[1], .classes = classes, .inducing = c["inducing"], .dropout = c["dropout"], .blocks = blocks});
}

void require_text_options(const Config& c, const Shape& item) {
  const std::string& name = c["name"].get_ref<const std::string&>();
  require<InputError>(item.rank() == 2, "model: ", name, " reads texts (longest, vocabulary), got items ", item);
  require<InputError>(c["dim"].get<int64_t>() % c["heads"].get<int64_t>() == 0, "model: ", name, " needs heads that divide dim, got ", c["heads"],
                      " and ", c["dim"]);
  require<InputError>(c["dropout"] < 1.0, "model: dropout must be less than 1, got ", c["dropout"]);
}

std::unique_ptr<Model> make_text_encoder(const Config& c, const Shape& item, int64_t classes) {
  require_text_options(c, item);
  return std::make_unique<TextEncoder>(TextEncoderOptions{.vocabulary = item[1],
                                                          .max_length = item[0],
                                                          .dim = c["dim"],
                                                          .mlp_dim = c["mlp_dim"],
                                                          .classes = classes,
                                                          .depth = c["depth"],
                                                          .heads = c["heads"],
                                                          .dropout = c["dropout"],
                                                          .random_positions = c["random_positions"],
                                                          .padding_queries_vote = c["padding_queries_vote"],
                                                          .pool_padding = c["pool_padding"],
                                                          .double_softmax = c["double_softmax"],
                                                          .sinkhorn = sinkhorn_options(c)});
}

std::unique_ptr<Model> make_translator(const Config& c, const Shape& item, int64_t classes) {
  require_text_options(c, item);
  return std::make_unique<Translator>(TranslatorOptions{.source_words = item[1],
                                                        .target_words = classes,
                                                        .max_length = item[0],
                                                        .dim = c["dim"],
                                                        .mlp_dim = c["mlp_dim"],
                                                        .encoder_layers = c["encoder_layers"],
                                                        .decoder_layers = c["decoder_layers"],
                                                        .heads = c["heads"],
                                                        .dropout = c["dropout"],
                                                        .sinkhorn = sinkhorn_options(c)});
}

std::unique_ptr<Model> make_point_cloud_transformer(const Config& c, const Shape& item, int64_t classes) {
  require<InputError>(item.rank() == 2 && item[1] == 3, "model: point_cloud_transformer reads clouds (points, 3), got items ", item);
  require<InputError>(item[0] >= c["centres"], "model: point_cloud_transformer needs clouds of at least ", c["centres"],
                      " points (its option 'centres'), got items ", item);
  require<InputError>(c["dropout"] < 1.0, "model: dropout must be less than 1, got ", c["dropout"]);
  PointCloudTransformerOptions options{
      .classes = classes, .width = c["width"], .centres = c["centres"], .neighbours = c["neighbours"], .dropout = c["dropout"]};
  if (c["iterations"] > 1 || !c["double_normalisation"].get<bool>()) options.sinkhorn = sinkhorn_options(c);
  return std::make_unique<PointCloudTransformer>(options);
}

const std::map<std::string, Entry>& table() {
  static const std::map<std::string, Entry> entries = {
      {"vit",
       {with_sinkhorn_defaults({{"patch", 16}, {"dim", 128}, {"depth", 6}, {"heads", 8}, {"head_dim", 64}, {"mlp_dim", 128}}),
        [](const Config& c, const Shape& item, int64_t classes) { return make_vit(c, item, classes, MlpUse::used); }}},
      // unused_mlp: the authors' model carries the parameters of an MLP (mlp_dim wide) that it never applies.
      {"vit_attention_only",
       {with_sinkhorn_defaults({{"patch", 7}, {"dim", 128}, {"depth", 1}, {"heads", 1}, {"head_dim", 64}, {"unused_mlp", false}, {"mlp_dim", 128}}),
        [](const Config& c, const Shape& item, int64_t classes) {
          return make_vit(c, item, classes, c["unused_mlp"].get<bool>() ? MlpUse::unused : MlpUse::none);
        }}},
      // double_normalisation: at one half-step, divide the columns of softmax by their sums, as upstream does; more half-steps are Sinkhorn's.
      {"point_cloud_transformer",
       {with_sinkhorn_defaults({{"width", 64}, {"centres", 512}, {"neighbours", 32}, {"dropout", 0.5}, {"double_normalisation", true}}),
        make_point_cloud_transformer,
        [](const Config& c, std::unique_ptr<DataSource> data) {
          return std::make_unique<GroupedClouds>(std::move(data), PointGroups{c["centres"], c["neighbours"]});
        }}},
      {"set_transformer",
       {with_sinkhorn_defaults({{"dim", 256},
                                {"heads", 4},
                                {"inducing", 16},
                                {"layer_norm", true},
                                {"dropout", 0.5},
                                {"scale_by_model_width", false},
                                {"rows_sum_to_inverse_count", false}}),
        make_set_transformer}},
      {"text_encoder",
       {with_sinkhorn_defaults({{"dim", 256},
                                {"depth", 6},
                                {"heads", 8},
                                {"mlp_dim", 1024},
                                {"dropout", 0.1},
                                {"random_positions", false},
                                {"padding_queries_vote", false},
                                {"pool_padding", false},
                                {"double_softmax", false}}),
        make_text_encoder}},
      {"translator",
       {with_sinkhorn_defaults({{"dim", 512}, {"encoder_layers", 6}, {"decoder_layers", 6}, {"heads", 4}, {"mlp_dim", 1024}, {"dropout", 0.3}}),
        make_translator}},
  };
  return entries;
}

const Entry& find_entry(const std::string& name) {
  const auto entry = table().find(name);
  require<InputError>(entry != table().end(), "model: there is no model '", name, "'", what_there_is(name, model_names()));
  return entry->second;
}

/// The value as the type of its default; numbers must not be negative, counts not zero.
Config typed(const std::string& key, const Config& value, const Config& otherwise) {
  const auto fail = [&](const char* wanted) { throw InputError(cat("model: option '", key, "' must be ", wanted, ", got ", value)); };
  if (otherwise.is_boolean() && !value.is_boolean()) fail("true or false");
  if (otherwise.is_string() && !value.is_string()) fail("text");
  if (otherwise.is_number_float()) {
    if (!value.is_number() || !(value >= 0.0)) fail("a number, at least 0");
    return value.get<double>();
  }
  if (otherwise.is_number_integer() && (!value.is_number_integer() || value < 1 || value > 1'000'000)) fail("an integer from 1 to 1000000");
  return value;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, entry] : table()) names.push_back(name);
  return names;
}

Config default_model_config(const std::string& name) {
  Config config = {{"name", name}};
  config.update(find_entry(name).defaults);
  return config;
}

Config complete_model_config(const nlohmann::json& config) {
  require<InputError>(config.is_object() && config.contains("name") && config["name"].is_string(),
                      "model: must be an object with a \"name\", one of ", fmt::format("{}", fmt::join(model_names(), ", ")), ", got ", config);
  Config complete = default_model_config(config["name"]);
  std::vector<std::string> known;
  for (const auto& item : complete.items()) known.push_back(item.key());
  for (const auto& item : config.items()) {
    require<InputError>(complete.contains(item.key()), "model: ", config["name"], " has no option '", item.key(), "'",
                        what_there_is(item.key(), known));
    complete[item.key()] = typed(item.key(), item.value(), complete[item.key()]);
  }
  return complete;
}

std::unique_ptr<DataSource> prepare_data(const nlohmann::json& config, std::unique_ptr<DataSource> data) {
  const Config complete = complete_model_config(config);
  const Entry& entry = find_entry(complete["name"]);
  return entry.prepare ? entry.prepare(complete, std::move(data)) : std::move(data);
}

std::unique_ptr<Model> make_model(const nlohmann::json& config, const Shape& item, int64_t classes) {
  const Config complete = complete_model_config(config);
  return find_entry(complete["name"]).make(complete, item, classes);
}

}  // namespace sinkgrad
