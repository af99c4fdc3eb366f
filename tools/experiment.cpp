// The recipe is plain data; here it meets the registries of models and data sets.
#include "tools/experiment.h"

namespace sinkgrad {

namespace {
/// Runs `body`; an InputError then says which recipe it is about.
template <class Body>
auto naming(const Recipe& recipe, Body body) {
  try {
    return body();
  } catch (const InputError& error) {
    throw InputError(cat(recipe.name, ": ", error.what()));
  }
}
}  // namespace

void complete(Recipe& recipe) {
  naming(recipe, [&] {
    recipe.model = complete_model_config(recipe.model);
    nlohmann::json data = dataset_defaults(recipe.data.at("name"));
    data.update(recipe.data);
    recipe.data = data;
  });
}

std::unique_ptr<Classifier> open_model(const Recipe& recipe, const Shape& item, int64_t classes) {
  return naming(recipe, [&] { return make_model(recipe.model, item, classes); });
}

DataSplits open_data(const Recipe& recipe) {
  nlohmann::json options = recipe.data;
  options.erase("name");
  return naming(recipe, [&] { return make_dataset(recipe.data.at("name"), options); });
}

Recipe recipe_of(const Checkpoint& checkpoint) {
  Recipe recipe;
  recipe.name = checkpoint.path.string();
  for (const auto& [key, section] : {std::pair("model", &recipe.model), std::pair("data", &recipe.data)}) {
    const nlohmann::json found = checkpoint.recipe.value(key, nlohmann::ordered_json());
    require<InputError>(found.is_object() && found.contains("name") && found["name"].is_string(), checkpoint.path.string(),
                        ": its recipe requires an object '", key, "' with a string \"name\", got ", found);
    *section = found;
  }
  return recipe;
}

}  // namespace sinkgrad
