// What train, eval and info share: from the "model" and "data" sections of a recipe to data sets and a model.
#pragma once
#include <nlohmann/json.hpp>

#include "datasets/registry.h"
#include "datasets/translation.h"
#include "models/registry.h"
#include "nn/trainer.h"
#include "tools/ui/recipe.h"

namespace sinkgrad {

/// Fills in the defaults of model and data, so that the recipe says all that the run depends on. InputError for unknown names and options.
void complete(Recipe& recipe);

/// The model of a recipe for items of one shape; an InputError names the recipe.
std::unique_ptr<Model> open_model(const Recipe& recipe, const Shape& item, int64_t classes);

/// Before a model is trained: OutOfMemoryError when this machine's memory cannot hold its weights and what training keeps of each.
void require_memory(const Recipe& recipe, Model& model);

/// The data sets of a recipe, as its model wants them; an InputError names the recipe.
DataSplits open_data(const Recipe& recipe);

/// The test sentences of a recipe for translation, as its files have them; an InputError names the recipe.
ParallelText open_translation_test(const Recipe& recipe);

/// For commands that put several runs into one folder, each into a folder whose name begins with `prefix`: InputError where the folder holds anything
/// before the first of them, or, with `resume`, none of them. Hidden files do not count.
void require_own_folder(const std::filesystem::path& folder, bool resume, const std::string& command, const std::string& prefix);

/// The items that open_data would give, without the data.
ItemSpec data_item(const Recipe& recipe);

/// The model of a checkpoint, with its weights.
struct TrainedModel {
  std::unique_ptr<Model> model;
  std::unique_ptr<ParameterPack> parameters;
};

/// As `recipe` describes it, which may differ from the checkpoint's own where the weights fit, such as in the number of half-steps.
TrainedModel open_trained(const Checkpoint& checkpoint, const Recipe& recipe, const ItemSpec& items, Device device);

/// The items that a source holds.
inline ItemSpec items_of(const DataSource& data) { return {data.item_shape(), data.classes()}; }

/// How a recipe is trained on a device, by all of `ranks`.
TrainerOptions trainer_options(const Recipe& recipe, Device device, const Ranks& ranks = {});

/// The recipe that a checkpoint was made with, as far as model and data go.
Recipe recipe_of(const Checkpoint& checkpoint);

}  // namespace sinkgrad
