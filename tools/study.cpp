// `sinkgrad study`: trains a Transformer and a Sinkformer from one recipe, at several patch sizes and seeds, and shows them side by side:
// a table, learning curves, and the attention of one item at one half-step and at all of the Sinkformer's.
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
#include "tools/device_option.h"
#include "tools/experiment.h"
#include "tools/option_checks.h"
#include "tools/train.h"
#include "tools/ui/html.h"
#include "tools/ui/metrics.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

struct StudyCommand {
  std::string recipe, out, page, device = "auto";
  std::vector<std::string> settings;
  std::vector<int64_t> patches;
  int64_t half_steps = 5, seeds = 1;
  std::optional<double> lr, sinkhorn_lr;
  int threads = 0;
  bool resume = false;
};

/// One column of the table: a patch size (0: the recipe's own model) with softmax or Sinkhorn.
struct Cell {
  int64_t patch, half_steps;
  std::optional<double> lr;  // absent: the recipe's
  std::vector<fs::path> runs = {};
  std::vector<double> accuracy = {};  // of every seed, after the last epoch
  std::string name() const {
    return fmt::format("{}{}", half_steps == 1 ? "Transformer" : fmt::format("Sinkformer ({} half-steps)", half_steps),
                       patch ? fmt::format(", patch {}", patch) : "");
  }
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t half = v.size() / 2;
  return v.size() % 2 ? v[half] : (v[half - 1] + v[half]) / 2;
}

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
    cell.accuracy.push_back(last->value("acc"));
  }
}

/// Every model must exist before the first one is trained.
void check_cells(const StudyCommand& command, const std::vector<Cell>& cells) {
  std::optional<DataSplits> data;
  for (const Cell& cell : cells) {
    Recipe recipe = load_recipe(command.recipe, settings_of(command, cell));
    complete(recipe);
    if (!data) data = open_data(recipe);
    open_model(recipe, data->train->item_shape(), data->train->classes());
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
    s.y.push_back(median(values));
    if (cell.runs.size() > 1) {
      s.low.push_back(*std::min_element(values.begin(), values.end()));
      s.high.push_back(*std::max_element(values.begin(), values.end()));
    }
  }
  s.dashed = cell.half_steps == 1;
  return s;
}

std::string plan_chart(AttentionHeads& attention, int half_steps, Tape& tape, Model& model, const Tensor& item) {
  attention.sinkhorn.iterations = half_steps;
  attention.sinkhorn.expose_plan = true;
  tape.reset();
  model.scores(tape.leaf(item), {});
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
  const auto model = open_model(recipe, item, data.test->classes());
  const ParameterPack pack(*model, DType::f32, 0);
  checkpoint.restore(pack);
  BatchLoader loader(*data.test, 1, Purpose::evaluation);
  const Batch& one = loader.load(0, 0);
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
  if (model->attentions().empty()) return;
  AttentionHeads& attention = *model->attentions().front();
  std::vector<std::string> charts;
  for (int half_steps : {1, static_cast<int>(cell.half_steps)}) charts.push_back(plan_chart(attention, half_steps, tape, *model, one.inputs));
  page.figure(
      charts,
      fmt::format("{}: the same scores after one half-step and after {}. Softmax gives every query (row) a sum of 1 and lets some keys (columns) "
                  "collect more than others; Sinkhorn evens the columns out.",
                  cell.name(), cell.half_steps));
}

std::string percent(const std::vector<double>& accuracy) {
  std::string text = fmt::format("{:.2f} %", 100 * median(accuracy));
  if (accuracy.size() > 1)
    text += fmt::format(" ({:.2f} to {:.2f})", 100 * *std::min_element(accuracy.begin(), accuracy.end()),
                        100 * *std::max_element(accuracy.begin(), accuracy.end()));
  return text;
}

void study(StudyCommand command) {
  require<InputError>(command.half_steps > 1, "study: --half-steps is the Sinkformer's count and must exceed 1, got ", command.half_steps);
  const fs::path path = command.page.empty() ? fs::path(command.out) / "study.html" : fs::path(command.page);
  require<InputError>(path.extension() == ".html", "study: the page must end in .html, got ", path.string());
  require<IoError>(command.page.empty() || path.parent_path().empty() || fs::is_directory(path.parent_path()), path.string(),
                   ": its folder does not exist");
  std::vector<Cell> cells;
  for (int64_t patch : command.patches.empty() ? std::vector<int64_t>{0} : command.patches)
    for (int64_t half_steps : {int64_t{1}, command.half_steps})
      cells.push_back({patch, half_steps, half_steps == 1 ? command.lr : command.sinkhorn_lr});
  check_cells(command, cells);
  std::string note;
  const Device device = open_device(command.device, note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
  if (device.kind() == DeviceKind::cpu) command.device = "cpu";  // said once, not by each run
  for (Cell& cell : cells) train_cell(command, cell);

  const Recipe recipe = load_recipe(command.recipe, command.settings);
  std::vector<std::vector<std::string>> rows;
  fmt::print("\n{:>8}  {:>24}  {:>24}  {:>10}\n", "patch", "Transformer", fmt::format("Sinkformer, l = {}", command.half_steps), "difference");
  for (size_t k = 0; k < cells.size(); k += 2) {
    const double gap = 100 * (median(cells[k + 1].accuracy) - median(cells[k].accuracy));
    rows.push_back({cells[k].patch ? fmt::format("{}", cells[k].patch) : "-", percent(cells[k].accuracy), percent(cells[k + 1].accuracy),
                    fmt::format("{:+.2f}", gap)});
    fmt::print("{:>8}  {:>24}  {:>24}  {:>10}\n", rows.back()[0], rows.back()[1], rows.back()[2], rows.back()[3]);
  }

  const std::string data_name = recipe.data.at("name");
  HtmlPage page("Transformer and Sinkformer on " + data_name,
                fmt::format("sinkgrad {} · recipe {} · {} epochs · {} seed{} · {}", SINKGRAD_VERSION, recipe.name, recipe.epochs, command.seeds,
                            command.seeds > 1 ? "s" : "", device.backend().name()));
  page.section("Test accuracy")
      .table({"patch", "Transformer", fmt::format("Sinkformer, l = {}", command.half_steps), "difference"}, rows,
             "After the last epoch, over the whole test set" + std::string(command.seeds > 1 ? "; median (range) over seeds." : "."));
  LineChart chart{.title = "Test accuracy",
                  .description = "test accuracy in percent over epochs for every model",
                  .x_label = "epoch",
                  .y_label = "accuracy, %",
                  .x_integers = true};
  for (const Cell& cell : cells) chart.series.push_back(learning_curve(cell));
  page.section("Learning curves").figure({line_chart(chart)});
  page.section("Attention before and after Sinkhorn");
  for (size_t k = 1; k < cells.size(); k += 2) show_attention(page, cells[k]);
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
  command->add_option("--half-steps", options->half_steps, "of the Sinkformer; the Transformer has one")->capture_default_str();
  command->add_option("--seeds", options->seeds, "runs of every model, with seeds 1, 2, ...")->check(positive_integer)->capture_default_str();
  command->add_option("--lr", options->lr, "learning rate of the Transformer [the recipe's]")->check(positive_number);
  command->add_option("--sinkhorn-lr", options->sinkhorn_lr, "learning rate of the Sinkformer [the recipe's]")->check(positive_number);
  command->add_option("--set", options->settings, "KEY=VALUE, changes one setting of the recipe; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("-o,--out", options->out, "the folder of the runs")->required();
  command->add_flag("--resume", options->resume, "continue a study that was stopped, from the runs in that folder");
  command->add_option("--page", options->page, "the HTML page [study.html in the folder of the runs]");
  add_device_option(*command, options->device, "where to train");
  command->add_option("--threads", options->threads, "results do not depend on it [all cores]")->check(positive_integer);
  command->callback([options] { study(*options); });
}

}  // namespace sinkgrad
