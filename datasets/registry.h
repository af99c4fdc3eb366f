// Datasets by name, built from JSON options: what a recipe's "data" section and the command line say.
// Unknown names and option keys are errors that name the nearest known one.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "datasets/dataset.h"

namespace sinkgrad {

/// Two datasets of equal item shape and classes.
struct DataSplits {
  std::unique_ptr<Dataset> train, test;
};

/// The names that make_dataset knows.
std::vector<std::string> dataset_names();

/// All options of a dataset with their default values (a JSON object).
nlohmann::json dataset_defaults(const std::string& name);

/// Builds dataset `name`; `options` overrides some of its defaults. A value must have the type of its default. Options:
/// - mnist, fashion-mnist: folder (relative ones lie in $SINKGRAD_DATA, or in ./data), mean and std of pixels in 0..1,
///   limit_train and limit_test (only the first items; 0 = all).
/// - shapes: points per cloud, train and test (numbers of clouds), noise (on surfaces about 2 across), pose (any, upright or fixed),
///   augment (new clouds each epoch), seed.
DataSplits make_dataset(const std::string& name, const nlohmann::json& options);

}  // namespace sinkgrad
