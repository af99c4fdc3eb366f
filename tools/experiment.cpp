// The recipe is plain data; here it meets the registries of models and data sets.
#include "tools/experiment.h"

#include "models/registry.h"

namespace sinkgrad {

void complete(Recipe& recipe) {
  recipe.model = complete_model_config(recipe.model);
  const std::string name = recipe.data.at("name");
  nlohmann::json data = dataset_defaults(name);
  data.update(recipe.data);
  recipe.data = data;
}

DataSplits open_data(const nlohmann::json& section) {
  nlohmann::json options = section;
  options.erase("name");
  return make_dataset(section.at("name"), options);
}

Recipe recipe_of(const Checkpoint& checkpoint) {
  Recipe recipe;
  for (const auto& [key, section] : {std::pair("model", &recipe.model), std::pair("data", &recipe.data)}) {
    const nlohmann::json found = checkpoint.recipe.value(key, nlohmann::ordered_json());
    require<InputError>(found.is_object() && found.contains("name") && found["name"].is_string(), checkpoint.path.string(),
                        ": its recipe requires an object '", key, "' with a string \"name\", got ", found);
    *section = found;
  }
  return recipe;
}

}  // namespace sinkgrad
