// `sinkgrad half-steps`: test accuracy, of translators BLEU, against the number of half-steps (Figure 3). Each run at the number it was trained
// with, or the same weights at several.
#include "tools/ui/half_steps.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "core/parallel.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/figure.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/translation.h"
#include "tools/ui/curves.h"
#include "tools/ui/html.h"
#include "tools/ui/spread.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct HalfStepsCommand {
  std::vector<std::string> runs, data;
  std::vector<int64_t> half_steps;
  std::string out = "half_steps.html", device = "auto";
  int64_t beam = 5;
  int threads = 0;
};

/// The checkpoint that each path stands for: a file, the last one of a run folder, or those of all runs below a folder.
std::vector<fs::path> find_checkpoints(const std::vector<std::string>& paths) {
  constexpr const char* kLast = "last.safetensors";
  std::vector<fs::path> found;
  for (const fs::path path : paths) {
    require<IoError>(fs::exists(path), path.string(), ": does not exist");
    const size_t before = found.size();
    if (!fs::is_directory(path))
      found.push_back(path);
    else if (fs::exists(path / kLast))
      found.push_back(path / kLast);
    else
      for (const auto& entry : fs::recursive_directory_iterator(path))
        if (entry.path().filename() == kLast) found.push_back(entry.path());
    require<InputError>(found.size() > before, path.string(), ": holds no run: there is no ", kLast, " in it or below");
    std::sort(found.begin() + static_cast<ptrdiff_t>(before), found.end());
  }
  return found;
}

/// Scores checkpoints on their test sets, each of which is opened once.
class Scorer {
 public:
  Scorer(const HalfStepsCommand& command, Device device) : command_(command), device_(device), tape_(DType::f32, device) {}

  static bool translates(const Recipe& recipe) { return recipe.model.at("name") == "translator"; }

  /// Percent of the test items, or BLEU.
  double operator()(const Checkpoint& checkpoint, Recipe recipe, int64_t half_steps) {
    for (const std::string& setting : command_.data) recipe.set("data." + setting);
    recipe.model["iterations"] = half_steps;
    complete(recipe);
    if (translates(recipe)) {
      const ParallelText& test = once(tests_, recipe, [&] { return open_translation_test(recipe); });
      TranslationSystem system(checkpoint.path, device_, half_steps);
      return score_translations(system.text(), system.translate(test.source, {.beam = command_.beam}), test.target)[0].bleu;
    }
    const DataSource& test = *once(data_, recipe, [&] { return open_data(recipe); }).test;
    const TrainedModel trained = open_trained(checkpoint, recipe, items_of(test), device_);
    const Score score = evaluate(tape_, *trained.model, test, checkpoint.recipe.value("eval_batch_size", 256));
    if (!std::isfinite(score.loss())) throw DivergedError(cat(checkpoint.path.string(), ": the loss is not finite"));
    return 100 * score.accuracy();
  }

 private:
  template <class Data, class Open>
  static const Data& once(std::map<std::string, Data>& opened, const Recipe& recipe, Open open) {
    nlohmann::json key = {recipe.data, recipe.model};  // of the model, what its data are prepared for
    key[1].erase("iterations");
    const auto found = opened.find(key.dump());
    return found != opened.end() ? found->second : opened.emplace(key.dump(), open()).first->second;
  }

  const HalfStepsCommand& command_;
  Device device_;
  Tape tape_;
  std::map<std::string, DataSplits> data_;
  std::map<std::string, ParallelText> tests_;
};

std::vector<std::vector<std::string>> table_rows(const std::vector<HalfStepCurve>& curves) {
  std::vector<std::vector<std::string>> rows;
  for (const HalfStepCurve& curve : curves)
    for (const auto& [half_steps, scores] : curve.scores) {
      const Spread spread(scores);
      rows.push_back({curve.label, std::to_string(half_steps), fmt::format("{:.2f}", spread.median), fmt::format("{:.2f}", spread.least),
                      fmt::format("{:.2f}", spread.greatest), std::to_string(spread.count)});
    }
  return rows;
}

void draw(const FigureFile& figure, const std::vector<HalfStepCurve>& curves, const std::string& measure, const std::string& subtitle) {
  const std::string chart = line_chart(half_steps_chart(curves, measure));
  if (!figure.is_page()) return figure.write(chart);
  HtmlPage page("Half-steps of Sinkhorn's algorithm", subtitle);
  page.figure({chart}).table({"model", "half-steps", "median", "least", "greatest", "runs"}, table_rows(curves), "Test " + measure);
  figure.write(page.str());
}

void half_steps(HalfStepsCommand command) {
  std::sort(command.half_steps.begin(), command.half_steps.end());
  command.half_steps.erase(std::unique(command.half_steps.begin(), command.half_steps.end()), command.half_steps.end());
  const FigureFile figure("half-steps", command.out);
  if (command.threads > 0) set_threads(command.threads);
  std::string note;
  const Device device = open_device(command.device, note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);

  std::vector<Checkpoint> checkpoints;
  std::vector<Run> runs;
  for (const fs::path& path : find_checkpoints(command.runs)) {
    const Checkpoint& checkpoint = checkpoints.emplace_back(read_checkpoint(path));
    Recipe recipe = recipe_of(checkpoint);
    require<InputError>(Scorer::translates(recipe) == Scorer::translates(recipe_of(checkpoints.front())),
                        "half-steps: translators, which are scored by BLEU, cannot share a figure with classifiers, got ",
                        checkpoints.front().path.string(), " and ", path.string());
    nlohmann::json config = checkpoint.recipe;
    if (command.half_steps.empty()) config["model"].erase("iterations");  // runs that differ in it are points of one curve
    runs.push_back({path, config, {}});
  }
  const std::string measure = Scorer::translates(recipe_of(checkpoints.front())) ? "BLEU" : "accuracy";

  Scorer score(command, device);
  std::vector<HalfStepCurve> curves;
  Json numbers = {{"measure", measure}, {"split", "test"}, {"curves", Json::array()}};
  for (const RunGroup& group : group_runs(runs, true)) {
    HalfStepCurve& curve = curves.emplace_back(HalfStepCurve{group.label, {}});
    Json scores = Json::array();
    for (const Run* run : group.runs) {
      const Checkpoint& checkpoint = checkpoints[static_cast<size_t>(run - runs.data())];
      Recipe recipe = recipe_of(checkpoint);
      complete(recipe);
      const std::vector<int64_t> own = {recipe.model.at("iterations").get<int64_t>()};
      for (const int64_t count : command.half_steps.empty() ? own : command.half_steps) {
        curve.scores[count].push_back(score(checkpoint, recipe, count));
        scores.push_back({{"half_steps", count}, {"score", curve.scores[count].back()}, {"checkpoint", run->path.string()}});
        fmt::print(stderr, "{}, {} half-step{}: {:.2f}\n", run->path.string(), count, count == 1 ? "" : "s", curve.scores[count].back());
      }
    }
    numbers["curves"].push_back({{"label", group.label}, {"scores", scores}});
  }
  figure.write_numbers(numbers);
  draw(figure, curves, measure, fmt::format("sinkgrad half-steps, {} checkpoint{}", runs.size(), runs.size() == 1 ? "" : "s"));
  fmt::print("test {}\n", measure);
  for (const HalfStepCurve& curve : curves)
    for (const auto& [count, scores] : curve.scores) {
      const Spread spread(scores);
      fmt::print("  {:<36} {:>4} half-step{} {:6.2f}{}\n", curve.label, count, count == 1 ? " " : "s", spread.median, spread.range());
    }
  fmt::print("The figure is {}\n", figure.name());
}

}  // namespace

void add_half_steps(CLI::App& app) {
  const auto options = std::make_shared<HalfStepsCommand>();
  CLI::App* command = app.add_subcommand("half-steps", "Draw test accuracy, or BLEU, against the number of half-steps");
  command->footer(
      "Runs that differ only in the seed are joined: median and range. OUT with the ending .json holds the numbers.\n"
      "Example: sinkgrad half-steps runs/mnist_patch_small --half-steps 1 3 5 21 --out half_steps.svg");
  command->add_option("runs", options->runs, "run folders (their last checkpoints), folders of run folders, or checkpoints")->required();
  command->add_option("--half-steps", options->half_steps, "try each checkpoint with these numbers [what each run was trained with]")
      ->check(positive_integer);
  command->add_option("-o,--out", options->out, "what to write, ending in .html or .svg")->capture_default_str();
  add_data_option(*command, options->data);
  command->add_option("--beam", options->beam, "of the search of translators")->check(CLI::Range(1, 1000))->capture_default_str();
  add_device_option(*command, options->device, "where to compute");
  add_threads_option(*command, options->threads);
  command->callback([options] { half_steps(*options); });
}

}  // namespace sinkgrad
