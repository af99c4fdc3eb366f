// What train, eval and info share: from the "model" and "data" sections of a recipe to data sets and a model.
#pragma once
#include <nlohmann/json.hpp>

#include "datasets/registry.h"
#include "nn/checkpoint.h"
#include "tools/ui/recipe.h"

namespace sinkgrad {

/// Fills in the defaults of model and data, so that the recipe says all that the run depends on. InputError for unknown names and options.
void complete(Recipe& recipe);

/// The data sets of a section {"name": ..., options}.
DataSplits open_data(const nlohmann::json& section);

/// The recipe that a checkpoint was made with, as far as model and data go.
Recipe recipe_of(const Checkpoint& checkpoint);

}  // namespace sinkgrad
