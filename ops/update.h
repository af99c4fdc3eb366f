// What a training step does outside the tape: the optimizer's update and what is measured. Each is a Routine over whole buffers that leaves its
// numbers in a StepState in the memory of the device, so nothing waits and a recorded step (core/replay.h) stays valid while they change.
#pragma once
#include "core/routine.h"
#include "core/tensor.h"

namespace sinkgrad {

/// The numbers of one training step that differ from the next one's.
struct StepState {
  // From the host.
  uint64_t random_step = 0;  ///< see RandomState::step_on_device
  double step = 0;           ///< of the update: factor of the direction
  double root_scale = 1;     ///< adam: of sqrt(v), before epsilon is added
  double keep = 1;           ///< factor of the values that decay, for decoupled decay
  double max_norm = 0;       ///< of the gradient; 0 never clips
  // From the device.
  double loss = 0;
  int64_t correct = 0;
  double gradient_norm = 0;   ///< before clipping
  double gradient_scale = 1;  ///< of every gradient in the update; not a number: the update is left out
};

/// Loss and hits of a batch: loss = weight * loss, correct = rows whose largest logit is that of their label (a NaN is never the largest).
/// With `add` both are added to what is there.
struct BatchScore {
  View logits, labels, loss;  ///< (B, classes), i32 (B), ()
  double weight = 1;
  bool add = false;
  StepState* state = nullptr;
};
extern Routine<BatchScore> score_batch;

/// gradient_norm = the 2-norm of the whole buffer, gradient_scale = the factor that brings it down to max_norm, not a number when the norm or the
/// loss is not finite. The same bits every time.
struct GradientNorm {
  View gradients;  ///< flat; a multiple of 16 elements, as all buffers below
  StepState* state = nullptr;
};
extern Routine<GradientNorm> measure_gradient;
/// The factor that brings a gradient of this norm down to max_norm (torch's clip_grad_norm_); max_norm 0 never clips.
constexpr double clip_scale(double norm, double max_norm) { return max_norm > 0 && norm + 1e-6 > max_norm ? max_norm / (norm + 1e-6) : 1; }

/// One update of the values, see nn/optimizer.h for the rules. With m and v it is Adam, with neither or m alone SGD.
struct ValueUpdate {
  static constexpr int64_t kChunk = 4096;  ///< largest size of a chunk
  View values, gradients, m, v;
  View chunks;                               ///< i64 (count, 3): begin, end (multiples of 16), whether decay applies; they cover the buffers
  double beta1 = 0, beta2 = 0, epsilon = 0;  ///< sgd: beta1 is the momentum
  double coupled_decay = 0;                  ///< times x joins the gradient where decay applies
  const StepState* state = nullptr;
};
extern Routine<ValueUpdate> update_values;

/// Moves the running statistics of batch norm towards those of a batch: r += momentum (batch - r), the variance made unbiased.
struct RunningStatistics {
  View mean, variance, batch_mean, batch_variance;  ///< (C)
  int64_t count = 0;                                ///< values per channel, at least 2
  double momentum = 0;
};
extern Routine<RunningStatistics> update_running_statistics;

}  // namespace sinkgrad
