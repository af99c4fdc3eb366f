// What train, eval and info share: from the "model" and "data" sections of a recipe to data sets and a model.
#pragma once
#include <nlohmann/json.hpp>

#include "datasets/registry.h"
#include "models/registry.h"
#include "nn/trainer.h"
#include "tools/ui/recipe.h"

namespace sinkgrad {

/// Fills in the defaults of model and data, so that the recipe says all that the run depends on. InputError for unknown names and options.
void complete(Recipe& recipe);

/// The model of a recipe for items of one shape; an InputError names the recipe.
std::unique_ptr<Model> open_model(const Recipe& recipe, const Shape& item, int64_t classes);

/// The data sets of a recipe; an InputError names the recipe.
DataSplits open_data(const Recipe& recipe);

/// The items that open_data would give, without the data.
ItemSpec data_item(const Recipe& recipe);

/// How a recipe is trained on a device.
TrainerOptions trainer_options(const Recipe& recipe, Device device);

/// The recipe that a checkpoint was made with, as far as model and data go.
Recipe recipe_of(const Checkpoint& checkpoint);

}  // namespace sinkgrad
