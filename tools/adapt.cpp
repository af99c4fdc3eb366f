// `sinkgrad adapt`: the paper's translation protocol (SPEC 2.4). A Transformer is trained; its weights are tried as a Sinkformer; then both are
// trained some epochs more at a tenth of the learning rate. BLEU of all four on the test set.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "core/file.h"
#include "core/json.h"
#include "core/parallel.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/train.h"
#include "tools/translation.h"
#include "tools/ui/spread.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct AdaptCommand {
  std::string recipe, out, device = "auto";
  std::vector<std::string> settings;
  int64_t half_steps = 3, epochs = 5, seeds = 1, beam = 5;
  int threads = 0;
  bool resume = false;
};

/// The scores of one seed. Those that an earlier call left count as long as model and search are the same.
class Scores {
 public:
  explicit Scores(fs::path path, bool resume) : path_(std::move(path)) {
    if (resume && fs::exists(path_)) try {
        scores_ = Json::parse(read_file(path_, 1 << 20));
        require<InputError>(scores_.is_object(), path_.string(), ": must hold the scores of an earlier run, got ", scores_.type_name());
      } catch (const Json::exception& error) {
        throw InputError(cat(path_.string(), ": must hold the scores of an earlier run: ", json_problem(error)));
      }
  }
  double get(const std::string& name, int64_t updates, int64_t beam, const std::function<std::vector<BleuScore>()>& make) {
    const Json found = scores_.value(name, Json::object());
    const bool same = found.is_object() && found.value("updates", Json()) == updates && found.value("beam", Json()) == beam;
    if (!same || !found.value("bleu", Json()).is_number()) {
      const std::vector<BleuScore> made = make();
      scores_[name] = {{"bleu", made[0].bleu}, {"tokenised", made[0].text()}, {"sacre", made[1].text()}, {"updates", updates}, {"beam", beam}};
      write_file(path_, scores_.dump(2) + "\n");
    }
    return scores_[name].at("bleu");
  }

 private:
  fs::path path_;
  Json scores_ = Json::object();
};

/// One line of the table: a model and its BLEU for each seed.
struct Line {
  std::string name;
  std::vector<double> bleu = {};
};

class Protocol {
 public:
  Protocol(const AdaptCommand& command, Device device)
      : command_(command), device_(device), recipe_(load_recipe(command.recipe, command.settings)), test_(open_translation_test(recipe_)) {}

  void run_seed(uint64_t seed, std::vector<Line>& table) {
    const fs::path folder = fs::path(command_.out) / fmt::format("seed{}", seed);
    const fs::path transformer = folder / "transformer";
    const std::string sinkhorn = fmt::format("model.iterations={}", command_.half_steps);
    train_run(transformer, seed, {"model.iterations=1"}, {});
    Scores scores(folder / "bleu.json", command_.resume);
    const auto score = [&](const fs::path& run, int64_t half_steps) {
      const int64_t updates = read_checkpoint(run / "last.safetensors").state.step;
      return scores.get(fmt::format("{} l={}", run.filename().string(), half_steps), updates, command_.beam, [&] {
        TranslationSystem system(run / "last.safetensors", device_, half_steps);
        return score_translations(system.text(), system.translate(test_.source, {.beam = command_.beam}), test_.target);
      });
    };
    table[0].bleu.push_back(score(transformer, 1));
    table[1].bleu.push_back(score(transformer, command_.half_steps));
    const std::vector<std::string> tuning = {fmt::format("optimizer.lr={}", recipe_.optimizer.lr / 10), "schedule.name=constant", "schedule.warmup=0",
                                             fmt::format("epochs={}", command_.epochs)};
    for (const bool sinkformer : {false, true}) {
      const fs::path run = folder / (sinkformer ? "sinkformer_tuned" : "transformer_tuned");
      std::vector<std::string> settings = tuning;
      settings.push_back(sinkformer ? sinkhorn : "model.iterations=1");
      train_run(run, seed, settings, transformer / "last.safetensors");
      table[sinkformer ? 3 : 2].bleu.push_back(score(run, sinkformer ? command_.half_steps : 1));
    }
  }

 private:
  void train_run(const fs::path& folder, uint64_t seed, const std::vector<std::string>& settings, const fs::path& init) const {
    TrainCommand run{.recipe = command_.recipe,
                     .out = folder.string(),
                     .init = init.string(),
                     .device = command_.device,
                     .settings = command_.settings,
                     .seed = seed,
                     .threads = command_.threads};
    run.settings.insert(run.settings.end(), settings.begin(), settings.end());
    run.resume = command_.resume && fs::exists(folder / "last.safetensors");
    fmt::print(stderr, "{}\n", folder.string());
    train(run);
  }

  const AdaptCommand& command_;
  Device device_;
  Recipe recipe_;
  ParallelText test_;
};

void adapt(AdaptCommand command) {
  require<InputError>(command.half_steps > 1, "adapt: --half-steps is the Sinkformer's count and must exceed 1, got ", command.half_steps);
  if (command.threads > 0) set_threads(command.threads);
  std::string note;
  const Device device = open_device(command.device, note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
  if (device.kind() == DeviceKind::cpu) command.device = "cpu";  // said once, not by each run
  require_own_folder(command.out, command.resume, "adapt", "seed");
  const std::string epochs = fmt::format("{} epoch{}", command.epochs, command.epochs == 1 ? "" : "s");
  std::vector<Line> table = {{"Transformer"},
                             {fmt::format("its weights with {} half-steps", command.half_steps)},
                             {fmt::format("Transformer trained {} further", epochs)},
                             {fmt::format("Sinkformer trained {} further", epochs)}};
  Protocol protocol(command, device);
  for (int64_t seed = 1; seed <= command.seeds; ++seed) protocol.run_seed(static_cast<uint64_t>(seed), table);
  fmt::print("\nBLEU on the test set: tokenised, in small letters, no smoothing, beam {}{}\n", command.beam,
             command.seeds > 1 ? fmt::format("; median and range of {} seeds", command.seeds) : "");
  for (const Line& line : table) {
    const Spread bleu(line.bleu);
    fmt::print("  {:<38} {:6.2f}{}\n", line.name, bleu.median, bleu.range());
  }
}

}  // namespace

void add_adapt(CLI::App& app) {
  const auto options = std::make_shared<AdaptCommand>();
  CLI::App* command = app.add_subcommand("adapt", "Train a Transformer for translation, turn it into a Sinkformer, compare both");
  command->footer(
      "The further epochs run at a constant tenth of the recipe's learning rate, with a new optimizer. OUT/seedN/ holds three runs and bleu.json.\n"
      "Example: sinkgrad adapt number_words_small --out runs/numbers");
  command->add_option("recipe", options->recipe, "a recipe whose model is a translator")->required();
  command->add_option("--set", options->settings, "KEY=VALUE, changes one setting of the recipe; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("-o,--out", options->out, "the folder of the study")->required();
  command->add_option("--half-steps", options->half_steps, "of the Sinkformer's encoder")->check(positive_integer)->capture_default_str();
  command->add_option("--epochs", options->epochs, "that both are trained further")->check(positive_integer)->capture_default_str();
  command->add_option("--seeds", options->seeds, "runs, with seeds 1, 2, ...")->check(positive_integer)->capture_default_str();
  command->add_option("--beam", options->beam, "of the search")->check(CLI::Range(1, 1000))->capture_default_str();
  command->add_flag("--resume", options->resume, "continue the study in that folder");
  add_device_option(*command, options->device, "where to compute");
  add_threads_option(*command, options->threads);
  command->callback([options] { adapt(*options); });
}

}  // namespace sinkgrad
