// The trainer owns what a run is made of (tape, parameters, optimizer, data order) and makes one update at a time.
//
//   Trainer trainer(model, train_data, {.epochs = 10, .batch_size = 100});
//   while (!trainer.finished()) {
//     while (!trainer.epoch_complete()) trainer.step();
//     const Score test = trainer.evaluate(test_data);
//     if (trainer.end_epoch(test.accuracy())) trainer.save("best.safetensors");
//   }
//
// With several ranks each of them has such a trainer and makes the same calls: it computes its part of each batch, gradients are summed
// (nn/gradient_sum.h), and every rank makes the same update. What is reported and saved is that of the whole batch, the same on all.
#pragma once
#include "core/replay.h"
#include "datasets/dataset.h"
#include "nn/checkpoint.h"
#include "nn/classifier.h"
#include "nn/gradient_sum.h"
#include "nn/schedule.h"

namespace sinkgrad {

/// A loss or gradient that is not finite; the message names the update and the first value that went wrong.
struct DivergedError : Error {
  using Error::Error;
};

struct TrainerOptions {
  OptimizerOptions optimizer = {};
  ScheduleOptions schedule = {};  ///< `total` 0 means all epochs
  double clip_norm = 0;           ///< of the whole gradient; 0 = never clip
  double label_smoothing = 0;     ///< of the training loss only
  Smoothing smoothing_form = Smoothing::torch;
  int64_t epochs = 10, batch_size = 64, eval_batch_size = 256;
  uint64_t seed = 1;
  Precision precision = Precision::full;  ///< of the operands of matrix products
  Device device = Device::cpu();
  Ranks ranks = {};  ///< which share each batch
};

/// What one update did. The learning rate is the one it used.
struct StepReport {
  double loss = 0, lr = 0, gradient_norm = 0;  ///< mean loss of the batch; norm before clipping
  int64_t correct = 0, items = 0;
  size_t tape_bytes = 0;  ///< memory of the step
  uint64_t trace = 0;     ///< see Tape::trace
};

class Trainer {
 public:
  /// Draws the initial weights from the seed. Model and data must outlive the trainer; the model lives on the trainer's device from now on.
  /// InputError when there are more ranks than items in a batch, or several and the model normalises over the batch.
  Trainer(Model& model, const DataSource& train, const TrainerOptions& options);

  /// One update with the next batch of the epoch. DivergedError when loss or gradient is not finite; the parameters are unchanged then.
  StepReport step();
  /// Whether every batch of the present epoch has been seen; end_epoch() must follow.
  bool epoch_complete() const { return state_.position == loader_.batches(); }
  /// Goes on to the next epoch, given the accuracy on the test set; true when it is the best so far (an equal one or NaN is not).
  /// DivergedError when the ranks no longer have the same weights.
  bool end_epoch(double accuracy);
  bool finished() const { return state_.epoch >= options_.epochs; }

  /// The model as it stands on all items: no dropout, no augmentation, the last partial batch included.
  Score evaluate(const DataSource& data);
  /// Training items since the last call.
  Score take_window() { return std::exchange(state_.window, {}); }

  const TrainingState& state() const { return state_; }
  /// Epochs done, with a fraction inside an epoch.
  double epochs_done() const {
    return static_cast<double>(state_.epoch) + static_cast<double>(state_.position) / static_cast<double>(loader_.batches());
  }
  int64_t batches_per_epoch() const { return loader_.batches(); }
  const ParameterPack& parameters() const { return pack_; }
  const Optimizer& optimizer() const { return optimizer_; }
  Tape& tape() { return tape_; }
  /// Whether all ranks have the same weights, to the bit; all must ask.
  bool ranks_agree() const;
  /// Null for a rank that is alone.
  const GradientSum* gradient_sum() const { return sum_ ? &*sum_ : nullptr; }
  /// Updates that the device played from a record instead of being told each operation.
  uint64_t replayed() const { return replay_.played(); }

  /// Atomic; see nn/checkpoint.h.
  void save(const std::filesystem::path& path, const nlohmann::ordered_json& recipe = nlohmann::ordered_json::object()) const {
    write_checkpoint(path, recipe, state_, pack_, &optimizer_);
  }
  /// Continues where the checkpoint was made, bitwise as if the run had not stopped. InputError when seed, data, batch size, model or
  /// optimizer differ; nothing is changed then.
  void resume(const Checkpoint& checkpoint);

 private:
  uint64_t enqueue(const Batch& batch, const StepState& start, double weight);
  void differentiate(const Batch& batch, double weight);
  void sum_over_ranks();
  [[noreturn]] void report_divergence(const char* what, double value, double lr);

  Model* model_;
  TrainerOptions options_;
  Tape tape_;
  ParameterPack pack_;
  Optimizer optimizer_;
  std::optional<GradientSum> sum_;  // of several ranks
  BatchLoader loader_;
  Resident<StepState> step_;
  Replay replay_;
  TrainingState state_;
};

/// The model on all items of a dataset, in batches of which each rank takes a part; what Trainer::evaluate does, for a model without a trainer.
Score evaluate(Tape& tape, Model& model, const DataSource& data, int64_t batch_size, const Ranks& ranks = {});

}  // namespace sinkgrad
