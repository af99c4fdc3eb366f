// One update: load, forward, loss, backward, norm, optimizer, reset. Nothing in it allocates once the tape is warm.
#include "nn/trainer.h"

#include <cmath>

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

/// Rows whose largest score is that of their label; a NaN is never the largest.
int64_t count_correct(Var logits, const View& labels) {
  const float* row = logits.span<float>().data();
  const int64_t classes = logits.shape()[1];
  int64_t correct = 0;
  for (int64_t b = 0; b < labels.shape[0]; ++b, row += classes) {
    const int64_t label = labels.as<int32_t>()[b];
    bool largest = label >= 0 && !std::isnan(row[label]);
    for (int64_t c = 0; c < classes && largest; ++c) largest = c == label || row[c] < row[label] || std::isnan(row[c]);
    correct += largest;
  }
  return correct;
}

bool all_finite(const View& view) {
  const float* x = view.as<float>();
  return std::all_of(x, x + view.shape.count(), [](float value) { return std::isfinite(value); });
}

/// What to look at first: a parameter, the output of an op, or the gradient of a parameter.
std::string first_nonfinite(const Tape& tape, Module& module) {
  for (const Parameter& p : module.parameters())
    if (!all_finite(p.value)) return cat("; the parameter ", p.name, " ", p.shape, " is not finite");
  for (size_t i = 0; i < tape.records().size(); ++i) {
    const Record& r = tape.records()[i];
    if (const View& out = tape.value(r.output); !all_finite(out))
      return cat("; the first output that is not finite is that of '", r.op->name, "' ", out.shape, ", record ", i);
  }
  for (const Parameter& p : module.parameters())
    if (!all_finite(p.grad)) return cat("; the gradient of ", p.name, " ", p.shape, " is not finite");
  return "";
}

}  // namespace

Trainer::Trainer(Classifier& model, const Dataset& train, const TrainerOptions& options)
    : model_(&model),
      options_(options),
      pack_(model, DType::f32, options.seed),
      optimizer_(pack_, options.optimizer),
      loader_(train, options.batch_size, Purpose::training, options.seed) {
  if (options_.schedule.total == 0) options_.schedule.total = options_.epochs * loader_.batches();
  state_.seed = options.seed;
  state_.items = train.size();
  state_.batch_size = options.batch_size;
}

StepReport Trainer::step() {
  require(!epoch_complete(), "trainer: the epoch is complete, end_epoch() must be called before step()");
  const Batch batch = loader_.load(static_cast<uint64_t>(state_.epoch), state_.position);
  StepReport report{.lr = learning_rate(options_.schedule, state_.step, state_.epoch), .items = batch.size()};

  const TapeStep end{tape_};
  tape_.set_training(true);
  tape_.set_random({state_.seed, static_cast<uint64_t>(state_.step)});
  pack_.zero_gradients();
  const Var logits = model_->logits(tape_.leaf(batch.inputs));  // (B, classes)
  const Var loss = cross_entropy(logits, tape_.leaf(batch.labels), options_.label_smoothing, options_.smoothing_form);
  report.loss = static_cast<double>(loss.span<float>()[0]);
  report.correct = count_correct(logits, batch.labels);
  if (!std::isfinite(report.loss)) report_divergence("the loss", report.loss, report.lr);
  tape_.backward(loss);
  report.gradient_norm = gradient_norm(pack_);
  if (!std::isfinite(report.gradient_norm)) report_divergence("the gradient norm", report.gradient_norm, report.lr);
  optimizer_.step(report.lr, clip_scale(report.gradient_norm, options_.clip_norm));
  report.tape_bytes = tape_.memory().active_bytes();
  report.trace = tape_.trace();

  ++state_.step;
  ++state_.position;
  state_.window.loss_sum += report.loss * static_cast<double>(report.items);
  state_.window.correct += report.correct;
  state_.window.items += report.items;
  return report;
}

void Trainer::report_divergence(const char* what, double value, double lr) {
  throw DivergedError(cat("training: ", what, std::isnan(value) ? " is not a number" : " is infinite", " at update ", state_.step + 1, " (epoch ",
                          state_.epoch + 1, ", lr ", lr, ")", first_nonfinite(tape_, *model_)));
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

Score Trainer::evaluate(const Dataset& data) { return sinkgrad::evaluate(tape_, *model_, data, options_.eval_batch_size); }

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

Score evaluate(Tape& tape, Classifier& model, const Dataset& data, int64_t batch_size) {
  const EvaluationMode mode(tape);
  BatchLoader loader(data, batch_size, Purpose::evaluation);
  Score score;
  for (int64_t position = 0; position < loader.batches(); ++position) {
    const Batch batch = loader.load(0, position);
    const TapeStep end{tape};
    const Var logits = model.logits(tape.leaf(batch.inputs));
    const Var loss = cross_entropy(logits, tape.leaf(batch.labels));
    score.loss_sum += static_cast<double>(loss.span<float>()[0]) * static_cast<double>(batch.size());
    score.correct += count_correct(logits, batch.labels);
    score.items += batch.size();
  }
  return score;
}

}  // namespace sinkgrad
