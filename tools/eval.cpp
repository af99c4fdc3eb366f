// `sinkgrad eval`: accuracy and loss of a checkpoint over every item of its data.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>

#include "core/parallel.h"
#include "nn/trainer.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"

namespace sinkgrad {
namespace {

struct EvalCommand {
  std::string checkpoint, split = "test";
  std::vector<std::string> data;
  int64_t batch_size = 256;
  std::string device = "auto";
  int threads = 0;
};

void eval(const EvalCommand& command) {
  const Checkpoint checkpoint = read_checkpoint(command.checkpoint);
  Recipe recipe = recipe_of(checkpoint);
  for (const std::string& setting : command.data) recipe.set("data." + setting);
  if (command.threads > 0) set_threads(command.threads);
  std::string note;
  const Device device = open_device(command.device, note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
  const DataSplits splits = open_data(recipe);
  const DataSource& data = command.split == "test" ? *splits.test : *splits.train;
  const TrainedModel trained = open_trained(checkpoint, recipe, items_of(data), device);
  Tape tape(DType::f32, device);
  const Score score = evaluate(tape, *trained.model, data, command.batch_size);
  fmt::print("{}: {} accuracy {:.2f}% ({} of {}), loss {:.4f}\n", command.checkpoint, command.split, 100 * score.accuracy(), score.correct,
             score.items, score.loss());
  if (!std::isfinite(score.loss())) throw DivergedError(cat(command.checkpoint, ": the loss is not finite"));
}

}  // namespace

void add_eval(CLI::App& app) {
  const auto options = std::make_shared<EvalCommand>();
  CLI::App* command = app.add_subcommand("eval", "Evaluate a checkpoint on all of its test data");
  command->footer("Example: sinkgrad eval runs/mnist_patch_small/best.safetensors --data folder=/srv/mnist");
  command->add_option("checkpoint", options->checkpoint, "a file that `sinkgrad train` wrote")->required();
  add_data_option(*command, options->data);
  command->add_option("--split", options->split, "test or train")->check(CLI::IsMember({"test", "train"}))->capture_default_str();
  command->add_option("--batch-size", options->batch_size, "items at a time; the accuracy does not depend on it")
      ->check(positive_integer)
      ->capture_default_str();
  add_device_option(*command, options->device, "where to compute");
  add_threads_option(*command, options->threads);
  command->callback([options] { eval(*options); });
}

}  // namespace sinkgrad
