// The recipe is plain data; here it meets the registries of models and data sets.
#include "tools/experiment.h"

#include <fmt/format.h>
#include <unistd.h>

#include "core/names.h"

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

nlohmann::json data_options(const Recipe& recipe) {
  nlohmann::json options = recipe.data;
  options.erase("name");
  return options;
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

std::unique_ptr<Model> open_model(const Recipe& recipe, const Shape& item, int64_t classes) {
  return naming(recipe, [&] { return make_model(recipe.model, item, classes); });
}

void require_memory(const Recipe& recipe, Model& model) {
  const double copies = recipe.optimizer.name == "sgd" ? 3 : 4;  // weight, gradient, one or two moments
  const double needed = copies * sizeof(float) * static_cast<double>(model.parameter_count());
  const double available = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  constexpr double kGiB = 1 << 30;
  require<OutOfMemoryError>(needed <= available, recipe.name, ": ",
                            fmt::format("its {} parameters need {:.1f} GiB for weights, gradients and moments, this machine has {:.1f} GiB",
                                        model.parameter_count(), needed / kGiB, available / kGiB));
}

DataSplits open_data(const Recipe& recipe) {
  return naming(recipe, [&] {
    DataSplits made = make_dataset(recipe.data.at("name"), data_options(recipe));
    return DataSplits{prepare_data(recipe.model, std::move(made.train)), prepare_data(recipe.model, std::move(made.test))};
  });
}

void require_own_folder(const std::filesystem::path& folder, bool resume, const std::string& command, const std::string& prefix) {
  if (!std::filesystem::is_directory(folder)) return;
  std::string other;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (resume && name.starts_with(prefix)) return;
    if (!name.starts_with(".")) other = name;
  }
  require<InputError>(other.empty(), folder.string(), ": ", command,
                      resume ? " --resume requires the folder of an earlier " + command : " requires an empty folder, or --resume to continue",
                      ", got '", printable(other), "' in it");
}

ParallelText open_translation_test(const Recipe& recipe) {
  return naming(recipe, [&] { return translation_test(recipe.data.at("name"), data_options(recipe)); });
}

ItemSpec data_item(const Recipe& recipe) {
  return naming(recipe, [&] { return dataset_item(recipe.data.at("name"), data_options(recipe)); });
}

TrainedModel open_trained(const Checkpoint& checkpoint, const Recipe& recipe, const ItemSpec& items, Device device) {
  TrainedModel trained{open_model(recipe, items.shape, items.classes), nullptr};
  trained.parameters = std::make_unique<ParameterPack>(*trained.model, DType::f32, 0, device);
  checkpoint.restore(*trained.parameters);
  return trained;
}

TrainerOptions trainer_options(const Recipe& recipe, Device device, const Ranks& ranks) {
  const OptimizerRecipe& o = recipe.optimizer;
  const ScheduleRecipe& s = recipe.schedule;
  using Kind = OptimizerOptions::Kind;
  using Schedule = ScheduleOptions::Kind;
  const bool fairseq_smoothing = recipe.loss.form == "fairseq";
  return {.optimizer = {.kind = o.name == "sgd"     ? Kind::sgd
                                : o.name == "adamw" ? Kind::adamw
                                                    : Kind::adam,
                        .beta1 = o.betas[0],
                        .beta2 = o.betas[1],
                        .epsilon = o.eps,
                        .momentum = o.momentum,
                        .weight_decay = o.weight_decay,
                        .form = o.form == "fairseq" ? OptimizerOptions::Form::fairseq : OptimizerOptions::Form::torch,
                        .decay_all = o.decay_all},
          .schedule = {.kind = s.name == "step"           ? Schedule::step
                               : s.name == "cosine"       ? Schedule::cosine
                               : s.name == "inverse_sqrt" ? Schedule::inverse_sqrt
                                                          : Schedule::constant,
                       .lr = o.lr,
                       .warmup = s.warmup,
                       .warmup_lr = s.warmup_lr,
                       .milestones = s.milestones,
                       .gamma = s.gamma,
                       .min_lr = s.min_lr},
          .clip_norm = o.clip_norm,
          .label_smoothing = recipe.loss.label_smoothing,
          .smoothing_form = fairseq_smoothing ? Smoothing::fairseq : Smoothing::torch,
          .epochs = recipe.epochs,
          .batch_size = recipe.batch_size,
          .eval_batch_size = recipe.eval_batch_size,
          .seed = recipe.seed,
          .precision = precision_named(recipe.precision),
          .device = device,
          .ranks = ranks};
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
