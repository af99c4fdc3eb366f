// One update: load, forward, loss, backward, norm, optimizer, reset. Nothing in it allocates once the tape is warm.
// With several ranks the mean over a batch is the sum over ranks of their means, weighted by the labels that count on each.
#include "nn/trainer.h"

#include <bit>
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
  if (!batch.labels) return;  // a part without items
  for (const int32_t label : batch.labels.span<int32_t>())
    require((label >= 0 && label < classes) || label == kNoLabel, "training data: labels must lie in 0..", classes - 1, ", got ", label);
}

/// An update makes the weights of all ranks the same; a hash tells when it did not.
uint64_t hash_of(const Tensor& values) {
  const Tensor here = values.to(Device::cpu());
  uint64_t hash = 0;
  for (const float x : here.span<float>()) hash = (hash ^ std::bit_cast<uint32_t>(x)) * 0x100000001b3;
  return hash;
}

BatchPart part_of(const Ranks& ranks) { return {ranks.rank(), ranks.size()}; }

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
      loader_(train, options.batch_size, Purpose::training, options.seed, false, loader_threads(options.device), part_of(options.ranks)),
      step_(options.device),
      replay_(options.ranks.is_alone() ? options.device.backend().recorder() : nullptr) {
  tape_.set_precision(options.precision);
  if (!options.ranks.is_alone()) {
    const int64_t largest = std::min(options.batch_size, train.size());
    require<InputError>(largest >= options.ranks.size(), "training: a batch needs an item for each rank, got ", largest, " for ",
                        options.ranks.size(), " ranks");
    for (const Buffer& b : model.buffers())  // running statistics
      throw InputError(
          cat("training: the model normalises over the whole batch (", b.name, "), which ranks do not share; one process must train it"));
    sum_.emplace(pack_, options.ranks);
  }
  if (options_.schedule.total == 0) options_.schedule.total = options_.epochs * loader_.batches();
  state_.seed = options.seed;
  state_.items = train.size();
  state_.batch_size = options.batch_size;
}

/// All that the device does in one update; returns what Replay compares. Nothing here waits for the device.
uint64_t Trainer::enqueue(const Batch& batch, const StepState& start, double weight) {
  tape_.reset();
  step_.write(start);
  tape_.set_training(true);
  tape_.set_random({state_.seed, start.random_step, &step_.get()->random_step});
  tape_.set_share({batch.first, batch.items});
  pack_.zero_gradients();
  if (sum_) sum_->start(tape_);
  if (batch.items > 0) differentiate(batch, weight);
  if (sum_) sum_over_ranks();
  measure_gradient(tape_.device(), {.gradients = pack_.gradients().view(), .state = step_.get()});
  optimizer_.run(step_.get());
  return tape_.trace();
}

/// Forward and backward; `weight` is that of this rank's mean in the mean of the whole batch.
void Trainer::differentiate(const Batch& batch, double weight) {
  const Var logits = scores_of(*model_, tape_, batch), labels = tape_.leaf(batch.labels);  // (rows, classes), (rows)
  const Var loss = cross_entropy(logits, labels, options_.label_smoothing, options_.smoothing_form, kNoLabel);
  score_batch(tape_.device(),
              {.logits = tape_.value(logits), .labels = tape_.value(labels), .loss = tape_.value(loss), .weight = weight, .state = step_.get()});
  if (sum_)
    tape_.backward(loss, Tensor::of<float>({}, {static_cast<float>(weight)}));
  else
    tape_.backward(loss);
}

void Trainer::sum_over_ranks() {
  sum_->finish(tape_);
  StepState s = step_.read();
  double scores[] = {s.loss, static_cast<double>(s.correct)};
  options_.ranks.sum(scores);
  s.loss = scores[0];
  s.correct = static_cast<int64_t>(scores[1]);
  step_.write(s);
}

StepReport Trainer::step() {
  require(!epoch_complete(), "trainer: the epoch is complete, end_epoch() must be called before step()");
  const auto epoch = static_cast<uint64_t>(state_.epoch);
  const Batch batch = loader_.load(epoch, state_.position);  // shares the loader's memory
  check_labels(batch, loader_.classes());
  if (state_.position + 1 < loader_.batches()) loader_.prefetch(epoch, state_.position + 1);
  const auto own_labels = static_cast<double>(batch.size());
  double labels[] = {own_labels};  // then of the whole batch
  options_.ranks.sum(labels);
  StepReport report{.lr = learning_rate(options_.schedule, state_.step, state_.epoch), .items = static_cast<int64_t>(labels[0])};
  StepState start{.random_step = static_cast<uint64_t>(state_.step), .max_norm = options_.clip_norm};
  optimizer_.prepare(start, report.lr);

  const TapeStep end{tape_};
  const auto run = [&] { return enqueue(batch, start, sum_ ? own_labels / std::max(1.0, labels[0]) : 1); };
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
  std::string first = first_nonfinite_value(tape_, *model_);
  if (!first.empty() && sum_) first = cat("on rank ", options_.ranks.rank(), " ", first);
  first = options_.ranks.first_text(first);
  if (first.empty()) first = first_nonfinite_gradient(*model_, tape_.device());  // summed: the same on all ranks
  throw DivergedError(cat("training: ", what, std::isnan(value) ? " is not a number" : " is infinite", " at update ", state_.step + 1, " (epoch ",
                          state_.epoch + 1, ", lr ", lr, ")", first.empty() ? "" : "; ", first));
}

bool Trainer::end_epoch(double accuracy) {
  require(epoch_complete(), "trainer: end_epoch() needs a complete epoch, got ", state_.position, " of ", loader_.batches(), " batches");
  require<DivergedError>(ranks_agree(), "training: the weights of the ranks differ after update ", state_.step, "; the machines must be of one kind");
  ++state_.epoch;
  state_.position = 0;
  if (!(accuracy > state_.best_accuracy)) return false;
  state_.best_accuracy = accuracy;
  state_.best_epoch = state_.epoch;
  return true;
}

bool Trainer::ranks_agree() const { return options_.ranks.is_alone() || options_.ranks.agree(hash_of(pack_.values())); }

Score Trainer::evaluate(const DataSource& data) { return sinkgrad::evaluate(tape_, *model_, data, options_.eval_batch_size, options_.ranks); }

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

Score evaluate(Tape& tape, Model& model, const DataSource& data, int64_t batch_size, const Ranks& ranks) {
  const EvaluationMode mode(tape);
  BatchLoader loader(data, batch_size, Purpose::evaluation, 0, false, loader_threads(tape.device()), part_of(ranks));
  Resident<StepState> sums(tape.device());  // a new one is zero
  int64_t items = 0;
  for (int64_t position = 0; position < loader.batches(); ++position) {
    const Batch& batch = loader.load(0, position);
    check_labels(batch, data.classes());
    if (position + 1 < loader.batches()) loader.prefetch(0, position + 1);
    if (batch.items == 0) continue;
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
  double scores[] = {total.loss, static_cast<double>(total.correct), static_cast<double>(items)};
  ranks.sum(scores);
  return {.loss_sum = scores[0], .correct = static_cast<int64_t>(scores[1]), .items = static_cast<int64_t>(scores[2])};
}

}  // namespace sinkgrad
