// One update: load, forward, loss, backward, norm, optimizer, reset. Nothing in it allocates once the tape is warm.
#include "nn/trainer.h"

#include <cmath>

#include "core/parallel.h"
#include "nn/finite_check.h"

namespace sinkgrad {
namespace {

/// Ends the step however the scope is left, so that an error leaves the tape usable.
struct TapeStep {
  Tape& tape;
  ~TapeStep() { tape.reset(); }
};

struct EvaluationMode {
  explicit EvaluationMode(Tape& t) : tape(t), training(t.training()), recording(t.recording()) {
    tape.set_training(false);
    tape.set_recording(false);
  }
  ~EvaluationMode() {
    tape.set_training(training);
    tape.set_recording(recording);
  }
  Tape& tape;
  bool training, recording;
};

/// While a GPU works, the CPU is free to load.
int loader_threads(Device device) { return device == Device::cpu() ? 1 : threads(); }

/// What the loss would refuse, told before the labels leave the host: a device finds it too late to name it.
void check_labels(const Batch& batch, int64_t classes) {
  for (const int32_t label : batch.labels.span<int32_t>())
    require((label >= 0 && label < classes) || label == kNoLabel, "training data: labels must lie in 0..", classes - 1, ", got ", label);
}

/// (rows, classes)
Var scores_of(Model& model, Tape& tape, const Batch& batch) {
  return model.scores(tape.leaf(batch.inputs), batch.context ? tape.leaf(batch.context) : Var{});
}

}  // namespace

Trainer::Trainer(Model& model, const DataSource& train, const TrainerOptions& options)
    : model_(&model),
      options_(options),
      tape_(DType::f32, options.device),
      pack_(model, DType::f32, options.seed, options.device),
      optimizer_(pack_, options.optimizer),
      loader_(train, options.batch_size, Purpose::training, options.seed, false, loader_threads(options.device)),
      step_(options.device),
      replay_(options.device) {
  tape_.set_precision(options.precision);
  if (options_.schedule.total == 0) options_.schedule.total = options_.epochs * loader_.batches();
  state_.seed = options.seed;
  state_.items = train.size();
  state_.batch_size = options.batch_size;
}

/// All that the device does in one update; returns what Replay compares. Nothing here waits for the device.
uint64_t Trainer::enqueue(const Batch& batch, const StepState& start) {
  tape_.reset();
  step_.write(start);
  tape_.set_training(true);
  tape_.set_random({state_.seed, start.random_step, &step_.get()->random_step});
  pack_.zero_gradients();
  const Var logits = scores_of(*model_, tape_, batch), labels = tape_.leaf(batch.labels);  // (rows, classes), (rows)
  const Var loss = cross_entropy(logits, labels, options_.label_smoothing, options_.smoothing_form, kNoLabel);
  score_batch(tape_.device(), {.logits = tape_.value(logits), .labels = tape_.value(labels), .loss = tape_.value(loss), .state = step_.get()});
  tape_.backward(loss);
  measure_gradient(tape_.device(), {.gradients = pack_.gradients().view(), .state = step_.get()});
  optimizer_.run(step_.get());
  return tape_.trace();
}

StepReport Trainer::step() {
  require(!epoch_complete(), "trainer: the epoch is complete, end_epoch() must be called before step()");
  const auto epoch = static_cast<uint64_t>(state_.epoch);
  const Batch batch = loader_.load(epoch, state_.position);  // shares the loader's memory
  check_labels(batch, loader_.classes());
  if (state_.position + 1 < loader_.batches()) loader_.prefetch(epoch, state_.position + 1);
  StepReport report{.lr = learning_rate(options_.schedule, state_.step, state_.epoch), .items = batch.size()};
  StepState start{.random_step = static_cast<uint64_t>(state_.step), .max_norm = options_.clip_norm};
  optimizer_.prepare(start, report.lr);

  const TapeStep end{tape_};
  const auto run = [&] { return enqueue(batch, start); };
  replay_.run(std::ref(run));
  const StepState done = step_.read();
  report.loss = done.loss;
  report.correct = done.correct;
  report.gradient_norm = done.gradient_norm;
  // The device has left out an update from numbers that are not finite.
  if (!std::isfinite(report.loss)) report_divergence("the loss", report.loss, report.lr);
  if (!std::isfinite(report.gradient_norm)) report_divergence("the gradient norm", report.gradient_norm, report.lr);
  report.tape_bytes = tape_.memory().active_bytes();
  report.trace = tape_.trace();

  ++state_.step;
  ++state_.position;
  optimizer_.set_updates(state_.step);
  state_.window.loss_sum += report.loss * static_cast<double>(report.items);
  state_.window.correct += report.correct;
  state_.window.items += report.items;
  return report;
}

void Trainer::report_divergence(const char* what, double value, double lr) {
  const std::string first = first_nonfinite(tape_, *model_);
  throw DivergedError(cat("training: ", what, std::isnan(value) ? " is not a number" : " is infinite", " at update ", state_.step + 1, " (epoch ",
                          state_.epoch + 1, ", lr ", lr, ")", first.empty() ? "" : "; ", first));
}

bool Trainer::end_epoch(double accuracy) {
  require(epoch_complete(), "trainer: end_epoch() needs a complete epoch, got ", state_.position, " of ", loader_.batches(), " batches");
  ++state_.epoch;
  state_.position = 0;
  if (!(accuracy > state_.best_accuracy)) return false;
  state_.best_accuracy = accuracy;
  state_.best_epoch = state_.epoch;
  return true;
}

Score Trainer::evaluate(const DataSource& data) { return sinkgrad::evaluate(tape_, *model_, data, options_.eval_batch_size); }

void Trainer::resume(const Checkpoint& checkpoint) {
  const TrainingState& s = checkpoint.state;
  const auto same = [&](const char* what, auto saved, auto now) {
    require<InputError>(saved == now, checkpoint.path.string(), ": was made with ", what, " ", saved, ", this run has ", now);
  };
  same("seed", s.seed, state_.seed);
  same("training items", s.items, state_.items);
  same("batch size", s.batch_size, state_.batch_size);
  const bool consistent = s.epoch >= 0 && s.position >= 0 && s.position <= loader_.batches() && s.step == s.epoch * loader_.batches() + s.position;
  require<InputError>(consistent, checkpoint.path.string(), ": update, epoch and position must agree, got ", s.step, ", ", s.epoch, " and ",
                      s.position, " of ", loader_.batches());
  checkpoint.restore(pack_, &optimizer_);
  state_ = s;
}

Score evaluate(Tape& tape, Model& model, const DataSource& data, int64_t batch_size) {
  const EvaluationMode mode(tape);
  BatchLoader loader(data, batch_size, Purpose::evaluation, 0, false, loader_threads(tape.device()));
  Resident<StepState> sums(tape.device());  // a new one is zero
  int64_t items = 0;
  for (int64_t position = 0; position < loader.batches(); ++position) {
    const Batch& batch = loader.load(0, position);
    check_labels(batch, data.classes());
    if (position + 1 < loader.batches()) loader.prefetch(0, position + 1);
    items += batch.size();
    const TapeStep end{tape};
    const Var logits = scores_of(model, tape, batch), labels = tape.leaf(batch.labels);
    const Var loss = cross_entropy(logits, labels, 0, Smoothing::torch, kNoLabel);
    score_batch(tape.device(), {.logits = tape.value(logits),
                                .labels = tape.value(labels),
                                .loss = tape.value(loss),
                                .weight = static_cast<double>(batch.size()),
                                .add = true,
                                .state = sums.get()});
  }
  const StepState total = sums.read();
  return {.loss_sum = total.loss, .correct = total.correct, .items = items};
}

}  // namespace sinkgrad
