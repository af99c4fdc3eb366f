// A recipe describes one experiment: a JSON file, every key typed. Only "model" and "data" are required; what they hold besides
// "name" is checked by the factories of models and data sets.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sinkgrad {

struct OptimizerRecipe {
  std::string name = "adam";  // adam, adamw (decay apart from the gradient) or sgd
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;         // sgd only
  std::string form = "torch";  // torch, or fairseq: eps joins sqrt(v) before the bias correction
  bool decay_all = false;      // also decay biases and normalisation weights
  double clip_norm = 0;        // of the whole gradient; 0 = never clip
};

struct ScheduleRecipe {
  std::string name = "constant";  // constant, step, cosine or inverse_sqrt
  int64_t warmup = 0;             // updates from warmup_lr up to lr
  double warmup_lr = 0;
  std::vector<int64_t> milestones;  // step: epochs done when lr is multiplied by gamma
  double gamma = 0.1;
  double min_lr = 0;  // cosine: the value it ends with
};

struct LossRecipe {
  double label_smoothing = 0;
  std::string form = "torch";  // torch spreads eps over all V classes, fairseq eps over the V-1 wrong ones
};

struct Recipe {
  std::string name, description;
  nlohmann::json model = nlohmann::json::object();  // {"name": ..., options}
  nlohmann::json data = nlohmann::json::object();   // {"name": ..., options}
  OptimizerRecipe optimizer;
  ScheduleRecipe schedule;
  LossRecipe loss;
  int64_t epochs = 10;
  int64_t batch_size = 64, eval_batch_size = 256;
  uint64_t seed = 1;
  std::string precision = "f32";  // of the operands of matrix products: f32, tf32 or bf16; sums are f32
  int64_t checkpoint_every = 0;   // updates between checkpoints, besides the one after each epoch; 0 = only that one

  /// Applies "a.b=value". The value is read as the schema's type: text needs no quotes, a list is written [1,2].
  /// InputError names the key, what it requires and, for an unknown key, the nearest known one.
  void set(const std::string& assignment);
  /// The effective configuration, every key in the order above.
  nlohmann::ordered_json to_json() const;
};

/// Reads a recipe and applies `overrides` in order. `name_or_path` is a name of recipe_names() or a path.
/// InputError names the file, the place and what is required there; IoError when the file cannot be read.
Recipe load_recipe(const std::string& name_or_path, const std::vector<std::string>& overrides = {});
/// Where recipes are looked up: the environment variable SINKGRAD_RECIPES, else the folder recipes/ of the source tree.
std::filesystem::path recipe_folder();
/// The recipes in that folder, sorted.
std::vector<std::string> recipe_names();

}  // namespace sinkgrad
