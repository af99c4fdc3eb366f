// Recipes: a JSON file and two --set options, parted by bytes 1e.
#include "fuzz/fuzz.h"
#include "tools/ui/recipe.h"

namespace sinkgrad::fuzz {

std::vector<std::string> seeds() {
  return {
      R"({"model": {"name": "vit", "iterations": 3}, "data": {"name": "digits"}, "optimizer": {"name": "adamw", "lr": 1e-3, "betas": [0.9, 0.98]}})"
      "\x1eoptimizer.lr=0.01\x1emodel.iterations=5",
      R"({"model": {"name": "a"}, "data": {"name": "b"}, "schedule": {"name": "step", "milestones": [3, 5]}, "epochs": 7, "seed": 18446744073709551615})"
      "\x1e"
      "data.a.b=[1,null]\x1elr=1"};
}

void feed(std::string_view input) {
  const std::vector<std::string> arguments = parts(input, 3);
  const MemoryFile file(arguments[0]);
  std::vector<std::string> overrides;
  for (size_t k = 1; k < arguments.size(); ++k)
    if (!arguments[k].empty()) overrides.push_back(arguments[k]);
  load_recipe(file.path(), overrides).to_json();
}

}  // namespace sinkgrad::fuzz
