// `sinkgrad columns`: how evenly attention spreads over the keys while a model is trained (Figure 2). Softmax fixes the sums of rows alone; what
// the paper saw is that training drives the sums of columns towards 1 as well.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "core/parallel.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/figure.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/ui/html.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ColumnsCommand {
  std::string run, out = "columns.html", device = "auto";
  std::vector<std::string> data;
  std::optional<int64_t> half_steps;
  int64_t items = 10;
  int threads = 0;
};

/// The column sums of one head over all items, in ascending order, as a share of what even columns have: n / m for n queries and m keys.
using Columns = std::vector<double>;

/// What a checkpoint shows: layer -> head -> columns.
struct Moment {
  int64_t epoch;
  fs::path checkpoint;
  std::vector<std::vector<Columns>> heads = {};

  Columns all() const {
    Columns all;
    for (const auto& layer : heads)
      for (const Columns& head : layer) all.insert(all.end(), head.begin(), head.end());
    std::sort(all.begin(), all.end());
    return all;
  }
};

/// The checkpoints that `train --keep-epochs` left, and the last one.
std::vector<fs::path> find_checkpoints(const fs::path& run) {
  if (!fs::is_directory(run)) return {run};
  std::vector<std::pair<int64_t, fs::path>> kept;
  for (const auto& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename();
    int64_t epoch = 0;
    int length = 0;
    if (std::sscanf(name.c_str(), "epoch%" SCNd64 ".safetensors%n", &epoch, &length) == 1 && static_cast<size_t>(length) == name.size())
      kept.emplace_back(epoch, entry.path());
  }
  std::sort(kept.begin(), kept.end());
  std::vector<fs::path> paths;
  for (const auto& [epoch, path] : kept) paths.push_back(path);
  if (fs::exists(run / "last.safetensors")) paths.push_back(run / "last.safetensors");
  require<InputError>(!paths.empty(), run.string(), ": is no run folder: there is no last.safetensors in it");
  return paths;
}

/// Adds the column sums of plan (B, H, N, M) to each head. Padding, where tokens have it, is neither query nor key.
void append_columns(const View& plan, Device device, const Tensor& inputs, std::vector<Columns>& heads) {
  const std::vector<double> values = to_doubles(plan, device);
  const int64_t batch = plan.shape[0], count = plan.shape[1], n = plan.shape[2], m = plan.shape[3];
  const bool tokens = inputs.dtype() == DType::i32;
  const auto is_padding = [&](int64_t b, int64_t i) {
    return tokens && inputs.span<int32_t>()[static_cast<size_t>((2 * batch + b) * inputs.shape()[2] + i)] != 0;
  };
  heads.resize(static_cast<size_t>(count));
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < count; ++h) {
      Columns sums;
      double total = 0;
      for (int64_t j = 0; j < m; ++j) {
        if (is_padding(b, j)) continue;
        double sum = 0;
        for (int64_t i = 0; i < n; ++i)
          if (!is_padding(b, i)) sum += values[static_cast<size_t>(((b * count + h) * n + i) * m + j)];
        sums.push_back(sum);
        total += sum;
      }
      const double even = total / static_cast<double>(sums.size());
      for (const double sum : sums) heads[static_cast<size_t>(h)].push_back(sum / even);
    }
  }
}

/// The attention of one checkpoint on test items that are spread evenly over the set.
Moment look(const Checkpoint& checkpoint, const Recipe& recipe, const DataSource& data, int64_t items, Device device) {
  const TrainedModel trained = open_trained(checkpoint, recipe, items_of(data), device);
  const std::vector<AttentionHeads*> steps = trained.model->attentions();
  require<InputError>(!steps.empty(), checkpoint.path.string(), ": the model has no plan to show; of a point_cloud_transformer, train one with ",
                      "model.double_normalisation=false or several half-steps");
  for (AttentionHeads* step : steps) step->sinkhorn.expose_plan = true;
  Tape tape(DType::f32, device);
  tape.set_training(false);
  tape.set_recording(false);
  Moment moment{checkpoint.state.epoch, checkpoint.path, std::vector<std::vector<Columns>>(steps.size())};
  BatchMemory memory;
  for (int64_t k = 0; k < items; ++k) {  // one at a time: the plans of a batch may be large
    const uint32_t index = static_cast<uint32_t>(k * data.size() / items);
    const Batch batch = data.batch(std::span(&index, 1), std::nullopt, memory);
    tape.reset();
    trained.model->scores(tape.leaf(batch.inputs), batch.context ? tape.leaf(batch.context) : Var{});
    for (size_t layer = 0; layer < steps.size(); ++layer) append_columns(steps[layer]->plan(), device, batch.inputs, moment.heads[layer]);
  }
  for (auto& layer : moment.heads)
    for (Columns& head : layer) std::sort(head.begin(), head.end());
  return moment;
}

double quantile(const Columns& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

std::vector<double> percentiles(const Columns& sorted) {
  std::vector<double> values;
  for (int percent = 0; percent <= 100; ++percent) values.push_back(quantile(sorted, percent / 100.0));
  return values;
}

/// Columns within a tenth of even.
double share_even(const Columns& sorted) {
  const auto even = std::count_if(sorted.begin(), sorted.end(), [](double sum) { return std::abs(sum - 1) <= 0.1; });
  return static_cast<double>(even) / static_cast<double>(sorted.size());
}

template <class ColumnsOf>
LineChart chart_of(const std::string& title, const std::vector<Moment>& moments, ColumnsOf columns) {
  LineChart chart{.title = title,
                  .description = "column sums of the attention in ascending order, a curve for each epoch; 1 is even",
                  .x_label = "columns, % in ascending order",
                  .y_label = "column sum",
                  .references = {{1, "even"}},
                  .log_y = true};
  for (const Moment& moment : moments) {
    Series& series = chart.series.emplace_back(Series{.label = fmt::format("epoch {}", moment.epoch), .x = {}, .y = percentiles(columns(moment))});
    for (int percent = 0; percent <= 100; ++percent) series.x.push_back(percent);
  }
  return chart;
}

std::string draw_page(const std::vector<Moment>& moments, const LineChart& whole, const std::string& subtitle) {
  HtmlPage page("Column sums of the attention", subtitle);
  page.figure(
      {line_chart(whole)},
      "All layers and heads. A row of the attention is what one query gives, a column is what all queries together give to one key, relative to "
      "even columns.");
  std::vector<std::vector<std::string>> rows;
  for (const Moment& moment : moments) {
    const Columns all = moment.all();
    rows.push_back({std::to_string(moment.epoch), format_number(all.front()), format_number(quantile(all, 0.05)), format_number(quantile(all, 0.5)),
                    format_number(quantile(all, 0.95)), format_number(all.back()), fmt::format("{:.1f} %", 100 * share_even(all))});
  }
  page.table({"epoch", "least", "5 %", "median", "95 %", "greatest", "within a tenth of even"}, rows);
  page.section("By layer and head");
  for (size_t layer = 0; layer < moments.front().heads.size(); ++layer) {
    std::vector<std::string> charts;
    for (size_t head = 0; head < moments.front().heads[layer].size(); ++head) {
      LineChart chart = chart_of(fmt::format("Attention {}, head {}", layer + 1, head + 1), moments,
                                 [&](const Moment& moment) -> const Columns& { return moment.heads[layer][head]; });
      chart.width = 400;
      chart.height = 260;
      charts.push_back(line_chart(chart));
    }
    page.figure(charts);
  }
  return page.str();
}

Json numbers_of(const std::vector<Moment>& moments) {
  Json all = Json::array();
  for (const Moment& moment : moments) {
    Json layers = Json::array();
    for (const auto& layer : moment.heads) {
      Json heads = Json::array();
      for (const Columns& head : layer)
        heads.push_back({{"columns", head.size()}, {"within_a_tenth", share_even(head)}, {"percentiles", percentiles(head)}});
      layers.push_back(heads);
    }
    all.push_back({{"epoch", moment.epoch}, {"checkpoint", moment.checkpoint.string()}, {"layers", layers}});
  }
  return all;
}

void columns(const ColumnsCommand& command) {
  const FigureFile figure("columns", command.out);
  if (command.threads > 0) set_threads(command.threads);
  std::string note;
  const Device device = open_device(command.device, note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);

  std::optional<DataSplits> data;
  std::vector<Moment> moments;
  Recipe recipe;
  for (const fs::path& path : find_checkpoints(command.run)) {
    const Checkpoint checkpoint = read_checkpoint(path);
    if (!moments.empty() && moments.back().epoch == checkpoint.state.epoch) continue;
    recipe = recipe_of(checkpoint);
    for (const std::string& setting : command.data) recipe.set("data." + setting);
    if (command.half_steps) recipe.model["iterations"] = *command.half_steps;
    complete(recipe);
    if (!data) data = open_data(recipe);
    require<InputError>(command.items <= data->test->size(), "columns: --items must be at most ", data->test->size(),
                        ", the size of the test set, got ", command.items);
    moments.push_back(look(checkpoint, recipe, *data->test, command.items, device));
  }
  const std::string half_steps = recipe.model.at("iterations").dump();
  figure.write_numbers(
      {{"run", command.run}, {"half_steps", recipe.model.at("iterations")}, {"items", command.items}, {"moments", numbers_of(moments)}});
  const LineChart whole = chart_of("Column sums of the attention", moments, [](const Moment& moment) { return moment.all(); });
  figure.write(figure.is_page() ? draw_page(moments, whole,
                                            fmt::format("sinkgrad columns {} · {} half-step{} · {} test items", command.run, half_steps,
                                                        half_steps == "1" ? " (softmax)" : "s", command.items))
                                : line_chart(whole));
  for (const Moment& moment : moments) {
    const Columns all = moment.all();
    fmt::print("epoch {:>4}: column sums {:.3g} to {:.3g}, {:.1f} % within a tenth of even\n", moment.epoch, all.front(), all.back(),
               100 * share_even(all));
  }
  fmt::print("The figure is {}\n", figure.name());
}

}  // namespace

void add_columns(CLI::App& app) {
  const auto options = std::make_shared<ColumnsCommand>();
  CLI::App* command = app.add_subcommand("columns", "Draw the column sums of a model's attention over training");
  command->footer(
      "The checkpoints are those that `sinkgrad train --keep-epochs` left in the run folder, and the last one. OUT with the ending .json holds\n"
      "percentiles for each epoch, layer and head.\n"
      "Example: sinkgrad columns runs/mnist_patch_small --out columns.svg");
  command->add_option("run", options->run, "a run folder, or one checkpoint")->required();
  command->add_option("--half-steps", options->half_steps, "of the attention [as trained]")->check(positive_integer);
  command->add_option("--items", options->items, "of the test set, spread evenly over it")->check(positive_integer)->capture_default_str();
  command->add_option("-o,--out", options->out, "what to write, ending in .html or .svg")->capture_default_str();
  add_data_option(*command, options->data);
  add_device_option(*command, options->device, "where to compute");
  add_threads_option(*command, options->threads);
  command->callback([options] { columns(*options); });
}

}  // namespace sinkgrad
