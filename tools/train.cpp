// `sinkgrad train`: runs a recipe into a folder that holds config.json, metrics.jsonl, last.safetensors and best.safetensors.
// A run that was stopped, by a signal or a crash, continues from last.safetensors as if it had not been.
// Of several ranks each makes the same calls; the first one alone writes and speaks.
#include "tools/train.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "core/file.h"
#include "core/parallel.h"
#include "core/version.h"
#include "datasets/cache.h"
#include "nn/attention_probe.h"
#include "nn/finite_check.h"
#include "nn/trainer.h"
#include "ops/cpu/instructions.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/ui/metrics.h"
#include "tools/ui/progress.h"
#include "tools/ui/stop_signal.h"

namespace sinkgrad {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

/// As a shell takes it for one word.
std::string shell_word(const std::string& text) {
  if (!text.empty() &&
      std::all_of(text.begin(), text.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("._-/+=:,@%", c); }))
    return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string{c};
  return word + "'";
}

/// "KEY was BEFORE, is AFTER; ..." for each key of two objects that differs and is not `free`.
std::string differences(const nlohmann::json& was, const nlohmann::json& is, const std::set<std::string>& free = {}) {
  const nlohmann::json saved = was.flatten(), now = is.flatten();
  nlohmann::json keys = saved;
  keys.update(now);
  std::string text;
  for (const auto& [key, unused] : keys.items()) {
    const nlohmann::json before = saved.value(key, nlohmann::json()), after = now.value(key, nlohmann::json());
    if (before != after && !free.contains(key)) text += cat(text.empty() ? "" : "; ", key.substr(1), " was ", before, ", is ", after);
  }
  return text;
}

/// Everything that changes the updates must be as it was; a longer run, another data folder or other ways to look at it may differ.
void require_same_recipe(const Checkpoint& checkpoint, const Json& recipe) {
  std::set<std::string> free = {"/name", "/description", "/eval_batch_size", "/checkpoint_every", "/data/folder", "/data/cache"};
  if (recipe["schedule"]["name"] != "cosine") free.insert("/epochs");
  const std::string found = differences(checkpoint.recipe, recipe, free);
  require<InputError>(found.empty(), checkpoint.path.string(), ": a resumed run requires the same recipe: ", found);
}

Device device_of(const TrainCommand& command, const Ranks& ranks, std::string& note) {
  require<InputError>(ranks.is_alone() || !command.device.starts_with("cuda:"), "train: ", ranks.size(),
                      " ranks take a GPU each with --device cuda, got ", command.device);
  const Device device = open_device(command.device, note, ranks.local_rank());
  require<InputError>(ranks.agree(static_cast<uint64_t>(device.kind())), "train: the ranks must compute on devices of one kind, rank ", ranks.rank(),
                      " has ", device.backend().name());
  return device;
}

class Run {
 public:
  Run(const TrainCommand& command, const Recipe& recipe)
      : command_(command),
        config_(recipe.to_json()),
        name_(recipe.name),
        epochs_(recipe.epochs),
        checkpoint_every_(recipe.checkpoint_every),
        device_(device_of(command, ranks_, device_note_)),
        folder_(command.out.empty() ? fs::path("runs") / recipe.name : fs::path(command.out)),
        data_(open_data(recipe)),
        model_(open_model(recipe, data_.train->item_shape(), data_.train->classes())),
        trainer_((require_memory(recipe, *model_), *model_), *data_.train, trainer_options(recipe, device_, ranks_)),
        finite_check_(*model_),
        progress_({.mode = parse_progress_mode(command.progress), .quiet = command.quiet || !ranks_.is_first()}) {
    if (command.check_finite) trainer_.tape().set_observer(&finite_check_);
    if (!device_note_.empty()) progress_.note(device_note_);
    if (!ranks_.is_alone()) progress_.note(fmt::format("ranks  {} share each batch, {}", ranks_.size(), Ranks::library()));
    if (device_.kind() != DeviceKind::cpu) progress_.note("device " + device_.backend().name());
    progress_.note("train  " + data_.train->description());
    progress_.note("test   " + data_.test->description());
    progress_.note(fmt::format("model  {}, {} parameters", recipe.model.at("name").get<std::string>(), model_->parameter_count()));
    if (recipe.model.value("iterations", 1) % 2 == 0)
      progress_.note("note   an even number of half-steps ends on columns: rows of the attention do not sum to exactly 1");
    if (recipe.precision == "bf16" && device_.kind() == DeviceKind::cpu && !cpu::has_bf16_instructions())
      progress_.note(
          "note   this processor has no bf16 products (AMX or AVX512_BF16): operands are rounded and multiplied in f32, which is no faster");
    require<InputError>(command.attention_every == 0 || !model_->attentions().empty(),
                        "train: --attention-every requires a model with softmax or Sinkhorn attention, '", recipe.name, "' has none");
    if (command.attention_every > 0 && ranks_.is_first()) probe_.emplace(*model_, *data_.test, device_, trainer_options(recipe, device_).precision);
    command.resume ? resume() : start();
    report_every_ = command.log_every > 0 ? command.log_every : std::max<int64_t>(1, trainer_.batches_per_epoch() / 20);
  }

  void run() {
    watch_stop_signals();
    try {
      while (!trainer_.finished() && !stopping()) trainer_.epoch_complete() ? end_epoch() : update();
    } catch (const RankLost& lost) {
      throw RankLost(cat(lost.what(), "; update ", saved_step_, " is saved in ", file("last").string(), ", --resume goes on from there"));
    }
    if (const int signal = ranks_.largest(stop_signal())) {
      save("last");
      progress_.finish();
      progress_.note(fmt::format("interrupted: update {} is saved in {}; continue with: sinkgrad train {} --out {} --resume", trainer_.state().step,
                                 file("last").string(), shell_word(folder_ / "config.json"), shell_word(folder_)));
      throw CLI::RuntimeError(128 + signal);
    }
    if (!trainer_.finished()) save("last");
    progress_.finish();
    print_result();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }
  fs::path file(const std::string& which) const { return folder_ / (which + ".safetensors"); }
  void save(const std::string& which) {
    ranks_.on_first([&] { trainer_.save(file(which), config_); });
    if (which == "last") saved_step_ = trainer_.state().step;
  }

  void keep() {
    const int64_t epoch = trainer_.state().epoch;
    if (std::count(command_.keep_epochs.begin(), command_.keep_epochs.end(), epoch) > 0) save(fmt::format("epoch{}", epoch));
  }

  /// What the model needs of the data when it is used: dictionaries, tokenizers.
  void write_data_files() const {
    for (const auto& [name, bytes] : data_.train->files()) write_file(folder_ / name, bytes);
  }

  void start() {
    if (!command_.init.empty()) read_checkpoint(command_.init).restore(trainer_.parameters());  // before there is a folder
    require_same_run();
    ranks_.on_first([&] { open_folder(); });
    keep();
    save("last");
    progress_.note("writing " + folder_.string());
  }

  void open_folder() {
    // A run that failed to write its first checkpoint has measured nothing: it may start again.
    if (const fs::path log = folder_ / "metrics.jsonl"; fs::exists(log) && !fs::exists(file("last")) && read_metrics(log).rows.empty())
      fs::remove(log);
    for (const char* checkpoint : {"last", "best"})
      require<InputError>(!fs::exists(file(checkpoint)) || fs::exists(folder_ / "metrics.jsonl"), file(checkpoint).string(),
                          ": a new run requires a folder without checkpoints, resume that run or choose another folder");
    std::error_code error;
    fs::create_directories(folder_, error);
    require<IoError>(!error, folder_.string(), ": creating the folder failed: ", error.message());
    metrics_.emplace(MetricsWriter::create(folder_ / "metrics.jsonl", header()));  // first: it refuses a folder that is in use
    write_file(folder_ / "config.json", config_.dump(2) + "\n");
    write_data_files();
    if (probe_) watch_attention();
  }

  void resume() {
    require<InputError>(fs::exists(file("last")), file("last").string(), ": there is nothing to resume; without --resume a new run starts");
    const Checkpoint checkpoint = read_checkpoint(file("last"));
    require_same_recipe(checkpoint, config_);
    trainer_.resume(checkpoint);
    saved_step_ = trainer_.state().step;
    require_same_run();
    ranks_.on_first([&] {
      const fs::path log = folder_ / "metrics.jsonl";
      metrics_.emplace(fs::exists(log) ? MetricsWriter::resume(log, trainer_.state().step) : MetricsWriter::create(log, header()));
      write_file(folder_ / "config.json", config_.dump(2) + "\n");
      write_data_files();
    });
    progress_.note(fmt::format("resuming {} at update {}", folder_.string(), trainer_.state().step));
  }

  /// Ranks that start from different things would never meet again, or wait for one another for ever.
  void require_same_run() const {
    if (ranks_.is_alone()) return;
    const TrainCommand& c = command_;
    const nlohmann::json own = {{"version", SINKGRAD_VERSION},
                                {"instructions", cpu::instructions()},
                                {"device", device_.backend().name()},
                                {"recipe", config_},
                                {"train", data_.train->description()},
                                {"test", data_.test->description()},
                                {"update", trainer_.state().step},
                                {"options", {c.out, c.resume, c.max_steps, c.log_every, c.attention_every, c.keep_epochs, c.check_finite}}};
    const nlohmann::json first = nlohmann::json::parse(ranks_.first_text(ranks_.is_first() ? own.dump() : ""));
    std::string problem = differences(first, own);
    if (!problem.empty()) problem = cat("on rank ", ranks_.rank(), " ", problem, " (rank 0 first)");
    problem = ranks_.first_text(problem);
    require<InputError>(problem.empty(), "train: the ranks must do the same: ", problem);
    require<InputError>(trainer_.ranks_agree(), "train: the ranks must start from the same weights, theirs differ");
  }

  nlohmann::json header() const {
    return {{"config", config_},
            {"version", SINKGRAD_VERSION},
            {"seed", trainer_.state().seed},
            {"device", device_.backend().name()},
            {"threads", threads()},
            {"ranks", ranks_.size()},
            {"parameters", model_->parameter_count()},
            {"train", data_.train->description()},
            {"test", data_.test->description()}};
  }

  /// A signal, to whichever rank, stops after the update; --max-steps lets a complete epoch be evaluated.
  bool stopping() const {
    return ranks_.largest(stop_signal()) || (command_.max_steps > 0 && trainer_.state().step >= command_.max_steps && !trainer_.epoch_complete());
  }

  void update() {
    const StepReport report = trainer_.step();
    const TrainingState& state = trainer_.state();
    items_ += report.items;
    if (trainer_.gradient_sum()) waited_ += trainer_.gradient_sum()->waited();
    if (state.position % report_every_ == 0 || trainer_.epoch_complete()) {
      const Score window = trainer_.take_window();
      const double seconds = seconds_since(reported_at_);
      values_ = {{"loss", window.loss()},
                 {"acc", window.accuracy()},
                 {"lr", report.lr},
                 {"grad_norm", report.gradient_norm},
                 {"items_s", static_cast<double>(items_) / std::max(seconds, 1e-9)},
                 {"mem", static_cast<double>(report.tape_bytes)}};
      if (!ranks_.is_alone()) values_.insert(values_.end() - 1, {"waited", waited_ / std::max(seconds, 1e-9)});
      log({.step = state.step, .epoch = trainer_.epochs_done(), .split = "train", .values = values_});
      values_.pop_back();  // memory does not change
      restart_clock();
    }
    if (probe_ && state.step % command_.attention_every == 0) watch_attention();
    const int64_t total = epochs_ * trainer_.batches_per_epoch();
    progress_.update(fmt::format("epoch {}/{}", state.epoch + 1, epochs_), state.step,
                     command_.max_steps > 0 ? std::min(total, command_.max_steps) : total, values_);
    if (checkpoint_every_ > 0 && state.step % checkpoint_every_ == 0 && !trainer_.epoch_complete()) save("last");
  }

  /// One row of the split "attention" with the numbers of every layer and head, both counted from 0: "attention.LAYER.HEAD.entropy".
  void watch_attention() {
    MetricsRow row{.step = trainer_.state().step, .epoch = trainer_.epochs_done(), .split = "attention"};
    const auto layers = probe_->measure();
    for (size_t layer = 0; layer < layers.size(); ++layer)
      for (size_t head = 0; head < layers[layer].size(); ++head) {
        const AttentionStatistics& s = layers[layer][head];
        for (const auto& [name, value] : {std::pair("column_min", s.column_min), std::pair("column_max", s.column_max),
                                          std::pair("marginal_error", s.marginal_error), std::pair("entropy", s.entropy)})
          row.values.emplace_back(fmt::format("attention.{}.{}.{}", layer, head, name), value);
      }
    log(row);
  }

  void end_epoch() {
    test_ = trainer_.evaluate(*data_.test);
    const bool best = trainer_.end_epoch(test_->accuracy());
    const TrainingState& state = trainer_.state();
    log({.step = state.step, .epoch = trainer_.epochs_done(), .split = "test", .values = {{"loss", test_->loss()}, {"acc", test_->accuracy()}}});
    if (best) save("best");
    keep();
    save("last");
    progress_.note(fmt::format("epoch {}/{}: test accuracy {:.2f}%, test loss {:.4g}{}", state.epoch, epochs_, 100 * test_->accuracy(), test_->loss(),
                               best ? ", the best so far" : ""));
    restart_clock();
  }

  void log(const MetricsRow& row) {
    if (metrics_) metrics_->write(row);
  }

  void restart_clock() {
    reported_at_ = Clock::now();
    items_ = 0;
    waited_ = 0;
  }

  void print_result() {
    const TrainingState& state = trainer_.state();
    if (!test_) test_ = trainer_.evaluate(*data_.test);
    const std::string best = state.best_epoch == 0 ? "" : fmt::format(" (best {:.2f}% after epoch {})", 100 * state.best_accuracy, state.best_epoch);
    if (ranks_.is_first())
      fmt::print("{}: test accuracy {:.2f}%{}, test loss {:.4f}, {} updates, {:.1f} s\n", name_, 100 * test_->accuracy(), best, test_->loss(),
                 state.step, seconds_since(started_at_));
    if (!std::isfinite(test_->loss())) throw DivergedError(cat(folder_.string(), ": the test loss is not finite"));
  }

  const TrainCommand& command_;
  Ranks ranks_ = Ranks::world();
  Json config_;
  std::string name_;
  int64_t epochs_, checkpoint_every_, report_every_ = 1;
  std::string device_note_;
  Device device_;
  fs::path folder_;
  DataSplits data_;
  std::unique_ptr<Model> model_;
  Trainer trainer_;
  FiniteCheck finite_check_;
  std::optional<AttentionProbe> probe_;  // with --attention-every
  Progress progress_;
  std::optional<MetricsWriter> metrics_;  // of the first rank
  std::optional<Score> test_;             // of the model as it stands after the last epoch
  std::vector<std::pair<std::string, double>> values_;
  Clock::time_point started_at_ = Clock::now(), reported_at_ = Clock::now();
  int64_t items_ = 0;       // since reported_at_
  double waited_ = 0;       // likewise, seconds for the gradients of other ranks
  int64_t saved_step_ = 0;  // in last.safetensors
};

}  // namespace

void train(const TrainCommand& command) {
  Recipe recipe = load_recipe(command.recipe, command.settings);
  if (command.seed) recipe.seed = *command.seed;
  complete(recipe);
  if (command.print_config) {
    if (Ranks::world().is_first()) fmt::print("{}\n", recipe.to_json().dump(2));
    return;
  }
  if (command.threads > 0) set_threads(command.threads);
  if (command.quiet) set_cache_listener({});
  Run(command, recipe).run();
}

void add_train(CLI::App& app) {
  const auto options = std::make_shared<TrainCommand>();
  CLI::App* command = app.add_subcommand("train", "Train a model as a recipe says");
  command->footer(
      "Ctrl-C or SIGTERM finishes the update, saves and exits with 130 or 143; a second one ends at once.\n"
      "Started N times by mpirun -n N, the processes share each batch and train one model: docs/parallel.md.\n"
      "Example: sinkgrad train set_shapes_small --set model.iterations=5 --set epochs=3 --out runs/sinkformer");
  command->add_option("recipe", options->recipe, "the name of a recipe (see `sinkgrad info`) or a JSON file")->required();
  command->add_option("--set", options->settings, "KEY=VALUE, changes one setting of the recipe; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("-o,--out", options->out, "the folder of the run [runs/NAME]");
  command->add_option("--init", options->init, "a checkpoint whose weights the run starts from; the optimizer starts anew");
  command->add_flag("--resume", options->resume, "continue the run in that folder, to the bit");
  command->add_option("--seed", options->seed, "of initial weights, data order and dropout [the recipe's]")->check(natural_number);
  add_device_option(*command, options->device, "where to compute; the same device and seed give the same bits");
  add_threads_option(*command, options->threads);
  command->add_option("--max-steps", options->max_steps, "stop after so many updates in all [as many as the epochs have]")->check(positive_integer);
  command->add_option("--log-every", options->log_every, "updates per line of metrics.jsonl [a twentieth of an epoch]")->check(positive_integer);
  command
      ->add_option("--attention-every", options->attention_every,
                   "updates between looks at the attention of 16 test items: column sums, entropy and marginal error of every layer and head go "
                   "to metrics.jsonl, `sinkgrad plot --attention` draws them [never]")
      ->check(positive_integer);
  command
      ->add_option("--keep-epochs", options->keep_epochs, "epochs after which the weights are also kept as epochN.safetensors; 0 = before the first")
      ->check(natural_number);
  command->add_option("--progress", options->progress, "auto, bar, plain or never")
      ->check(CLI::IsMember({"auto", "bar", "plain", "never"}))
      ->capture_default_str();
  command->add_flag("--check-finite", options->check_finite, "stop at the first NaN or infinity and name op, module, half-step and index (slower)");
  command->add_flag("-q,--quiet", options->quiet, "only the result, no progress and no notes");
  command->add_flag("--print-config", options->print_config, "print the complete recipe and exit");
  command->callback([options] { train(*options); });
}

}  // namespace sinkgrad
