// `sinkgrad graph`: the tape of one training step of a recipe as a table on stdout, and as a Graphviz file or a drawing.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "core/file.h"
#include "core/parallel.h"
#include "ops/ops.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/ui/graph_drawing.h"

namespace sinkgrad {
namespace {

struct GraphCommand {
  std::string recipe, device = "cpu";
  std::vector<std::string> settings, out;
  int64_t steps = 5, batch_size = 0, max_values = 8;
  int threads = 0;
  bool open = false;
};

/// One forward and backward on a batch; the tape keeps its records.
Var run_step(Tape& tape, Model& model, const Batch& batch, RecordTimes& times, int64_t max_values) {
  tape.reset();
  const Var inputs = tape.leaf(batch.inputs), context = batch.context ? tape.leaf(batch.context) : Var{}, labels = tape.leaf(batch.labels);
  times.start();
  const Var loss = cross_entropy(model.scores(inputs, context), labels, 0, Smoothing::torch, kNoLabel);
  for (const Record& r : tape.records())
    if (tape.value(r.output).shape.count() <= max_values && tape.requires_grad(r.output)) tape.retain_grad(Var{&tape, r.output, loss.step});
  times.start();
  tape.backward(loss);
  return loss;
}

void graph(const GraphCommand& command) {
  for (const std::string& out : command.out) {
    require<InputError>(out.ends_with(".svg") || out.ends_with(".dot"), "graph: --out requires names that end in .svg or .dot, got '", out, "'");
    const std::filesystem::path folder = std::filesystem::path(out).parent_path();
    require<IoError>(folder.empty() || std::filesystem::is_directory(folder), folder.string(), ": the folder of --out does not exist");
  }
  if (command.threads > 0) set_threads(command.threads);
  Recipe recipe = load_recipe(command.recipe, command.settings);
  complete(recipe);
  const DataSplits data = open_data(recipe);
  std::string unused;
  const Device device = open_device(command.device, unused);
  const auto model = open_model(recipe, data.train->item_shape(), data.train->classes());
  ParameterPack pack(*model, DType::f32, recipe.seed, device);
  const int64_t batch_size = command.batch_size > 0 ? command.batch_size : recipe.batch_size;
  BatchLoader loader(*data.train, batch_size, Purpose::training, recipe.seed);
  const Batch& batch = loader.load(0, 0);

  Tape tape(DType::f32, device);
  RecordTimes times;
  tape.set_random({.seed = recipe.seed});
  tape.set_observer(&times);
  Var loss;
  for (int64_t step = 0; step < command.steps; ++step) {
    pack.zero_gradients();
    loss = run_step(tape, *model, batch, times, command.max_values);
  }
  const std::vector<GraphNode> nodes = tape_graph(loss, *model, times, {.open = command.open, .max_values = command.max_values});
  fmt::print("{}", graph_table(nodes));
  const std::string title = fmt::format("One training step of {}, batches of {}", recipe.name, batch_size);
  for (const std::string& out : command.out) {
    write_file(out, out.ends_with(".svg") ? graph_svg(nodes, title) : graph_dot(nodes));
    fmt::print("written: {}\n", out);
  }
}

}  // namespace

void add_graph(CLI::App& app) {
  const auto options = std::make_shared<GraphCommand>();
  CLI::App* command = app.add_subcommand("graph", "Show the tape of one training step: ops, modules, shapes, bytes, times");
  command->footer("Example: sinkgrad graph set_shapes_small --set model.iterations=5 --open --out step.svg");
  command->add_option("recipe", options->recipe, "the name of a recipe (see `sinkgrad info`) or a JSON file")->required();
  command->add_option("--set", options->settings, "KEY=VALUE, changes one setting of the recipe; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_flag("--open", options->open, "show the half-steps of each Sinkhorn call; its time stays with the call");
  command->add_option("--steps", options->steps, "times are medians over so many steps")->check(positive_integer)->capture_default_str();
  command->add_option("--batch-size", options->batch_size, "items in the batch [the recipe's]")->check(positive_integer);
  command->add_option("--values", options->max_values, "show values and gradients of outputs with at most so many elements")
      ->check(natural_number)
      ->capture_default_str();
  add_device_option(*command, options->device, "where to compute; on a GPU the times are those of the launches");
  command->add_option("--threads", options->threads, "[all cores]")->check(positive_integer);
  command->add_option("-o,--out", options->out, "files to write, ending in .svg or .dot; repeatable")->allow_extra_args(false);
  command->callback([options] { graph(*options); });
}

}  // namespace sinkgrad
