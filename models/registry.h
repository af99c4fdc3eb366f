// Models by name: recipes and checkpoints describe a model as {"name": ..., options}, every option typed and with a default.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "datasets/dataset.h"
#include "nn/classifier.h"

namespace sinkgrad {

/// Names of all models, sorted.
std::vector<std::string> model_names();
/// Every option of a model with its default, "name" first. InputError names the nearest model.
nlohmann::ordered_json default_model_config(const std::string& name);
/// `config` completed by the defaults. InputError for an unknown option, with the nearest one, or a value of another type or range.
nlohmann::ordered_json complete_model_config(const nlohmann::json& config);
/// The data as a model wants it: batches for a Point Cloud Transformer carry the groups of its points.
std::unique_ptr<DataSource> prepare_data(const nlohmann::json& config, std::unique_ptr<DataSource> data);
/// The model for items of one shape (DataSource::item_shape) and a number of classes. `config` may omit options.
std::unique_ptr<Model> make_model(const nlohmann::json& config, const Shape& item, int64_t classes);

}  // namespace sinkgrad
