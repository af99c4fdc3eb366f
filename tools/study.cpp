// `sinkgrad study`: trains a Transformer and a Sinkformer from one recipe, at several patch sizes and seeds, and shows them side by side:
// a table, learning curves, and the attention of one item at one half-step and at all of a Sinkformer's.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/file.h"
#include "core/parallel.h"
#include "core/version.h"
#include "nn/trainer.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/train.h"
#include "tools/ui/half_steps.h"
#include "tools/ui/html.h"
#include "tools/ui/metrics.h"
#include "tools/ui/spread.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

struct StudyCommand {
  std::string recipe, out, page, device = "auto";
  std::vector<std::string> settings;
  std::vector<int64_t> patches;
  std::vector<int64_t> half_steps = {5};
  int64_t seeds = 1;
  std::optional<double> lr, sinkhorn_lr;
  int threads = 0;
  bool resume = false;
};

/// One column of the table: a patch size (0: the recipe's own model) with softmax or Sinkhorn.
struct Cell {
  int64_t patch, half_steps;
  std::optional<double> lr;  // absent: the recipe's
  std::vector<fs::path> runs = {};
  std::vector<double> accuracy = {};  // in percent, of every seed, after the last epoch
  std::string name() const {
    return fmt::format("{}{}", half_steps == 1 ? "Transformer" : fmt::format("Sinkformer ({} half-steps)", half_steps),
                       patch ? fmt::format(", patch {}", patch) : "");
  }
};

/// What the cell changes in the recipe.
std::vector<std::string> settings_of(const StudyCommand& command, const Cell& cell) {
  std::vector<std::string> settings = command.settings;
  settings.push_back(fmt::format("model.iterations={}", cell.half_steps));
  if (cell.patch) settings.push_back(fmt::format("model.patch={}", cell.patch));
  if (cell.lr) settings.push_back(fmt::format("optimizer.lr={}", *cell.lr));
  return settings;
}

void train_cell(const StudyCommand& command, Cell& cell) {
  for (int64_t seed = 1; seed <= command.seeds; ++seed) {
    TrainCommand run{
        .recipe = command.recipe, .settings = settings_of(command, cell), .seed = static_cast<uint64_t>(seed), .threads = command.threads};
    run.device = command.device;
    const fs::path folder = fs::path(command.out) / fmt::format("patch{}_l{}_seed{}", cell.patch, cell.half_steps, seed);
    run.out = folder.string();
    run.resume = command.resume && fs::exists(folder / "last.safetensors");
    train(run);
    cell.runs.push_back(folder);
    const auto rows = read_metrics(folder / "metrics.jsonl").rows;
    const auto last = std::find_if(rows.rbegin(), rows.rend(), [](const MetricsRow& r) { return r.split == "test"; });
    require<InputError>(last != rows.rend(), folder.string(), ": the run has no evaluation; it needs at least one whole epoch");
    cell.accuracy.push_back(100 * last->value("acc"));
  }
}

/// Every model must exist before the first one is trained.
void check_cells(const StudyCommand& command, const std::vector<Cell>& cells) {
  std::optional<DataSplits> data;
  for (const Cell& cell : cells) {
    Recipe recipe = load_recipe(command.recipe, settings_of(command, cell));
    complete(recipe);
    if (!data) data = open_data(recipe);
    require_memory(recipe, *open_model(recipe, data->train->item_shape(), data->train->classes()));
  }
}

/// Test accuracy in percent over epochs: the median over seeds, and the range as a band.
Series learning_curve(const Cell& cell) {
  Series s{.label = cell.name(), .x = {}, .y = {}, .points = true};
  std::vector<std::vector<double>> by_epoch;
  for (const fs::path& run : cell.runs) {
    size_t k = 0;
    for (const MetricsRow& row : read_metrics(run / "metrics.jsonl").rows) {
      if (row.split != "test") continue;
      if (k == by_epoch.size()) {
        by_epoch.emplace_back();
        s.x.push_back(row.epoch);
      }
      by_epoch[k++].push_back(100 * row.value("acc"));
    }
  }
  for (const auto& values : by_epoch) {
    const Spread spread(values);
    s.y.push_back(spread.median);
    s.low.push_back(spread.least);
    s.high.push_back(spread.greatest);
  }
  s.dashed = cell.half_steps == 1;
  return s;
}

std::string plan_chart(AttentionHeads& attention, int half_steps, Tape& tape, Model& model, const Batch& item) {
  attention.sinkhorn.iterations = half_steps;
  attention.sinkhorn.expose_plan = true;
  tape.reset();
  model.scores(tape.leaf(item.inputs), item.context ? tape.leaf(item.context) : Var{});
  const View plan = attention.plan();  // (1, heads, N, M): the first head
  const auto n = static_cast<size_t>(plan.shape[2]), m = static_cast<size_t>(plan.shape[3]);
  std::vector<double> values = to_doubles(plan);
  values.resize(n * m);
  return heat_map(
      {.title = half_steps == 1 ? "1 half-step: softmax" : fmt::format("{} half-steps: Sinkhorn", half_steps),
       .description = fmt::format("{} by {} attention weights of the first layer and head; row sums at the right, column sums below", n, m),
       .rows = n,
       .columns = m,
       .values = values,
       .row_axis = "query",
       .column_axis = "key",
       .low = 0.0,
       .row_sums = true,
       .column_sums = true,
       .row_reference = 1.0,
       .column_reference = static_cast<double>(n) / static_cast<double>(m),
       .size = 270});
}

/// The item and its attention in a trained model, before and after the column steps.
void show_attention(HtmlPage& page, const Cell& cell) {
  const Checkpoint checkpoint = read_checkpoint(cell.runs.front() / "last.safetensors");
  const Recipe recipe = recipe_of(checkpoint);
  const DataSplits data = open_data(recipe);
  const Shape item = data.test->item_shape();
  const TrainedModel trained = open_trained(checkpoint, recipe, items_of(*data.test), Device::cpu());
  BatchMemory memory;
  const uint32_t first = 0;
  const Batch one = data.test->batch(std::span(&first, 1), std::nullopt, memory);
  Tape tape;
  tape.set_training(false);
  tape.set_recording(false);

  if (item.rank() == 3) {
    std::vector<double> pixels = to_doubles(one.inputs.view());
    pixels.resize(static_cast<size_t>(item[1] * item[2]));
    page.figure({heat_map({.title = fmt::format("Test image 0: {}", data.test->class_names()[static_cast<size_t>(one.labels.span<int32_t>()[0])]),
                           .description = "the normalised pixels of the image",
                           .rows = static_cast<size_t>(item[1]),
                           .columns = static_cast<size_t>(item[2]),
                           .values = pixels,
                           .size = 270})});
  }
  if (trained.model->attentions().empty()) return;
  AttentionHeads& attention = *trained.model->attentions().front();
  std::vector<std::string> charts;
  for (int half_steps : {1, static_cast<int>(cell.half_steps)}) charts.push_back(plan_chart(attention, half_steps, tape, *trained.model, one));
  page.figure(
      charts,
      fmt::format("{}: the same scores after one half-step and after {}. Softmax gives every query (row) a sum of 1 and lets some keys (columns) "
                  "collect more than others; Sinkhorn evens the columns out.",
                  cell.name(), cell.half_steps));
}

std::string percent(const std::vector<double>& accuracy) {
  const Spread spread(accuracy);
  return fmt::format("{:.2f} %{}", spread.median, spread.range());
}

/// A row for each patch size: the Transformer, each Sinkformer, and what one Sinkformer gains.
std::vector<std::vector<std::string>> accuracy_rows(const std::vector<Cell>& cells, size_t models) {
  std::vector<std::vector<std::string>> rows;
  for (size_t k = 0; k < cells.size(); k += models) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(cells[k].patch ? std::to_string(cells[k].patch) : "-");
    for (size_t m = 0; m < models; ++m) row.push_back(percent(cells[k + m].accuracy));
    if (models == 2) row.push_back(fmt::format("{:+.2f}", Spread(cells[k + 1].accuracy).median - Spread(cells[k].accuracy).median));
  }
  return rows;
}

/// Figure 3, a curve for each patch size.
std::string half_steps_figure(const std::vector<Cell>& cells) {
  std::vector<HalfStepCurve> curves;
  for (const Cell& cell : cells) {
    if (cell.half_steps == 1) curves.push_back({cell.patch ? fmt::format("patch {}", cell.patch) : "all models", {}});
    curves.back().scores[cell.half_steps] = cell.accuracy;
  }
  return line_chart(half_steps_chart(curves, "accuracy"));
}

void study(StudyCommand command) {
  std::sort(command.half_steps.begin(), command.half_steps.end());
  for (const int64_t count : command.half_steps)
    require<InputError>(count > 1, "study: --half-steps are the Sinkformers' counts and must exceed 1, got ", count);
  require<InputError>(std::adjacent_find(command.half_steps.begin(), command.half_steps.end()) == command.half_steps.end(),
                      "study: each of --half-steps may be given once, got ", fmt::format("{}", fmt::join(command.half_steps, " ")));
  const fs::path path = command.page.empty() ? fs::path(command.out) / "study.html" : fs::path(command.page);
  require<InputError>(path.extension() == ".html", "study: the page must end in .html, got ", path.string());
  require<IoError>(command.page.empty() || path.parent_path().empty() || fs::is_directory(path.parent_path()), path.string(),
                   ": its folder does not exist");
  std::vector<Cell> cells;
  for (int64_t patch : command.patches.empty() ? std::vector<int64_t>{0} : command.patches) {
    cells.push_back({patch, 1, command.lr});
    for (const int64_t half_steps : command.half_steps) cells.push_back({patch, half_steps, command.sinkhorn_lr});
  }
  require_own_folder(command.out, command.resume, "study", "patch");
  check_cells(command, cells);
  std::string note;
  const Device device = open_device(command.device, note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
  if (device.kind() == DeviceKind::cpu) command.device = "cpu";  // said once, not by each run
  for (Cell& cell : cells) train_cell(command, cell);

  const Recipe recipe = load_recipe(command.recipe, command.settings);
  const size_t models = 1 + command.half_steps.size();
  const std::vector<std::vector<std::string>> rows = accuracy_rows(cells, models);
  std::vector<std::string> columns = {"patch", "Transformer"};
  for (const int64_t half_steps : command.half_steps) columns.push_back(fmt::format("Sinkformer, l = {}", half_steps));
  if (models == 2) columns.emplace_back("difference");
  const auto print_row = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) fmt::print("{:>{}}", row[i], i == 0 ? 8 : i > models ? 12 : 26);
    fmt::print("\n");
  };
  fmt::print("\n");
  print_row(columns);
  for (const auto& row : rows) print_row(row);

  const std::string data_name = recipe.data.at("name");
  HtmlPage page("Transformer and Sinkformer on " + data_name,
                fmt::format("sinkgrad {} · recipe {} · {} epochs · {} seed{} · {}", SINKGRAD_VERSION, recipe.name, recipe.epochs, command.seeds,
                            command.seeds > 1 ? "s" : "", device.backend().name()));
  page.section("Test accuracy")
      .table(columns, rows,
             fmt::format(
                 "After the last epoch, over the whole {}{}",
                 recipe.model.at("name") == "translator" ? "validation set: words, each predicted from those before it in the reference" : "test set",
                 command.seeds > 1 ? "; median (range) over seeds." : "."));
  if (models > 2) page.figure({half_steps_figure(cells)});
  LineChart chart{.title = "Test accuracy",
                  .description = "test accuracy in percent over epochs for every model",
                  .x_label = "epoch",
                  .y_label = "accuracy, %",
                  .x_integers = true};
  for (const Cell& cell : cells) chart.series.push_back(learning_curve(cell));
  page.section("Learning curves").figure({line_chart(chart)});
  page.section("Attention before and after Sinkhorn");
  for (size_t k = models - 1; k < cells.size(); k += models) show_attention(page, cells[k]);
  write_file(path, page.str());
  fmt::print("\nThe page is {}\n", path.string());
}

}  // namespace

void add_study(CLI::App& app) {
  const auto options = std::make_shared<StudyCommand>();
  CLI::App* command = app.add_subcommand("study", "Train Transformer and Sinkformer side by side and show table, curves and attention");
  command->footer("Example: sinkgrad study mnist_patch_small --patches 14 7 --half-steps 5 --sinkhorn-lr 0.002 --out runs/study");
  command->add_option("recipe", options->recipe, "the recipe that all runs share")->required();
  command->add_option("--patches", options->patches, "patch sizes, for image models [the recipe's]")->check(positive_integer);
  command->add_option("--half-steps", options->half_steps, "of one or more Sinkformers; the Transformer has one")->capture_default_str();
  command->add_option("--seeds", options->seeds, "runs of every model, with seeds 1, 2, ...")->check(positive_integer)->capture_default_str();
  command->add_option("--lr", options->lr, "learning rate of the Transformer [the recipe's]")->check(positive_number);
  command->add_option("--sinkhorn-lr", options->sinkhorn_lr, "learning rate of the Sinkformers [the recipe's]")->check(positive_number);
  command->add_option("--set", options->settings, "KEY=VALUE, changes one setting of the recipe; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("-o,--out", options->out, "the folder of the runs")->required();
  command->add_flag("--resume", options->resume, "continue a study that was stopped, from the runs in that folder");
  command->add_option("--page", options->page, "the HTML page [study.html in the folder of the runs]");
  add_device_option(*command, options->device, "where to train");
  add_threads_option(*command, options->threads);
  command->callback([options] { study(*options); });
}

}  // namespace sinkgrad
