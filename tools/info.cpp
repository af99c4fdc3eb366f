// `sinkgrad info`: what a recipe or a checkpoint holds. Without an argument it lists recipes, models, data sets and devices.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "models/registry.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/shared_options.h"

namespace sinkgrad {
namespace {

struct InfoCommand {
  std::string subject, device = "auto";
  std::vector<std::string> settings;
};

void print_names(const char* title, const std::vector<std::string>& names) {
  fmt::print("{}\n", title);
  for (const std::string& name : names) fmt::print("  {}\n", name);
}

void print_device(const std::string& option, Backend& backend) {
  fmt::print("  {:<8}{}\n", option, backend.name());
  for (const auto& [name, value] : backend.properties()) fmt::print("          {:<14}{}\n", name, value);
}

/// With "auto" the CPU and the first GPU, or why there is none; otherwise the one device.
void print_devices(const std::string& device) {
  if (device != "auto") {
    std::string unused;
    Backend& backend = open_device(device, unused).backend();
    fmt::print("devices\n");
    return print_device(device, backend);
  }
  fmt::print("several processes\n  {}\n", Ranks::library().empty() ? "this sinkgrad was built without MPI" : Ranks::library());
  fmt::print("devices\n");
  print_device("cpu", Device::cpu().backend());
  try {
    print_device("cuda", Device::cuda().backend());
  } catch (const DeviceError& error) {
    fmt::print("  {}\n", error.what());
  }
}

/// "1234567" -> "1,234,567".
std::string grouped(int64_t n) {
  std::string digits = std::to_string(n);
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return digits;
}

void print_model(const Recipe& recipe, Model& model) {
  fmt::print("model {}\n  {}\n", recipe.model.at("name").get<std::string>(), recipe.model.dump());
  size_t width = 4;
  for (const Parameter& p : model.parameters()) width = std::max(width, p.name.size());
  const double decay = recipe.optimizer.weight_decay;
  fmt::print("\n  {:<{}}  {:<16}  {:>12}{}\n", "name", width, "shape", "parameters", decay > 0 ? "  weight decay" : "");
  for (const Parameter& p : model.parameters())
    fmt::print("  {:<{}}  {:<16}  {:>12}{}\n", p.name, width, p.shape.str(), grouped(p.shape.count()),
               decay > 0 ? (p.decay || recipe.optimizer.decay_all ? "  yes" : "  no") : "");
  for (const Buffer& b : model.buffers()) fmt::print("  {:<{}}  {:<16}  {:>12}\n", b.name, width, b.shape.str(), "(state)");
  fmt::print("  {:<{}}  {:<16}  {:>12}\n\n", "total", width, "", grouped(model.parameter_count()));
}

void print_data(const DataSplits& data) {
  fmt::print("data\n  train  {}\n  test   {}\n\n", data.train->description(), data.test->description());
  constexpr int64_t kMostShown = 100;
  if (data.train->classes() > kMostShown) return;  // the words of a language
  const std::vector<int64_t> train = data.train->label_histogram(), test = data.test->label_histogram();
  fmt::print("  {:<16}  {:>8}  {:>8}\n", "class", "train", "test");
  for (size_t c = 0; c < train.size(); ++c) fmt::print("  {:<16}  {:>8}  {:>8}\n", data.train->class_names()[c], grouped(train[c]), grouped(test[c]));
  fmt::print("\n");
}

void print_training(const Recipe& recipe, const std::optional<DataSplits>& data) {
  const OptimizerRecipe& o = recipe.optimizer;
  fmt::print("training\n  {}, lr {}, schedule {}, weight decay {}, batches of {}, {} epochs", o.name, o.lr, recipe.schedule.name, o.weight_decay,
             recipe.batch_size, recipe.epochs);
  if (data) fmt::print(" of {} updates", data->train->plan(recipe.batch_size, Purpose::training)->batches());
  fmt::print("\n");
}

void describe(const Recipe& recipe, bool with_training) {
  std::optional<DataSplits> data;
  std::string missing;
  try {
    data = open_data(recipe);
  } catch (const IoError& error) {  // a summary needs no data
    missing = error.what();
  }
  const ItemSpec item = data ? ItemSpec{data->train->item_shape(), data->train->classes()} : data_item(recipe);
  print_model(recipe, *open_model(recipe, item.shape, item.classes));
  if (data)
    print_data(*data);
  else
    fmt::print("data\n  not available, the model is shown for items {} in {} classes: {}\n\n", item.shape.str(), item.classes, missing);
  if (with_training) print_training(recipe, data);
}

void info(const InfoCommand& command) {
  if (command.subject.empty() && command.device != "auto") {
    print_devices(command.device);
  } else if (command.subject.empty()) {
    print_names("recipes", recipe_names());
    print_names("models", model_names());
    print_names("data sets", dataset_names());
    print_devices(command.device);
  } else if (command.subject.ends_with(".safetensors")) {
    const Checkpoint checkpoint = read_checkpoint(command.subject);
    const TrainingState& s = checkpoint.state;
    fmt::print("checkpoint {}\n  seed {}, {} updates, {} epochs and {} batches", command.subject, s.seed, grouped(s.step), s.epoch, s.position);
    if (s.best_epoch > 0) fmt::print(", best test accuracy {:.2f}% after epoch {}", 100 * s.best_accuracy, s.best_epoch);
    fmt::print("\n\n");
    describe(recipe_of(checkpoint), false);
  } else {
    Recipe recipe = load_recipe(command.subject, command.settings);
    complete(recipe);
    fmt::print("recipe {}\n  {}\n\n", recipe.name, recipe.description);
    describe(recipe, true);
  }
}

}  // namespace

void add_info(CLI::App& app) {
  const auto options = std::make_shared<InfoCommand>();
  CLI::App* command = app.add_subcommand("info", "Describe a recipe or checkpoint: layers, parameters, data");
  command->footer("Example: sinkgrad info mnist_patch_small");
  command->add_option("subject", options->subject, "a recipe, or a checkpoint NAME.safetensors [list what there is]");
  command->add_option("--set", options->settings, "KEY=VALUE, changes one setting of the recipe; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  add_device_option(*command, options->device, "describe this device only");
  command->callback([options] { info(*options); });
}

}  // namespace sinkgrad
