// Learning-rate schedules: the rate is a pure function of the update and the epoch, so a resumed run continues it exactly.
// Update u counts from 0 and is the one about to be made; epoch e is the number of epochs done.
//
//   constant      lr
//   step          lr gamma^k, k = the number of milestones <= e:   milestones 7, 9: epochs 1..7 lr, 8..9 lr gamma, 10... lr gamma^2 (counted from 1)
//   cosine        min_lr + (lr - min_lr) (1 + cos(pi (u - warmup) / (total - warmup))) / 2, min_lr once all updates are made
//   inverse_sqrt  lr sqrt(warmup / u)
//   each of them, while u < warmup: warmup_lr + (lr - warmup_lr) u / warmup
//
//   lr 5e-4, warmup 4, warmup_lr 0:  u             0  1        2       3        4     5         6
//   (fairseq's inverse_sqrt)         inverse_sqrt  0  1.25e-4  2.5e-4  3.75e-4  5e-4  4.472e-4  4.082e-4
//   A warmup_lr above 0 keeps the first update from being wasted.
#pragma once
#include <cstdint>
#include <vector>

namespace sinkgrad {

struct ScheduleOptions {
  enum class Kind : uint8_t { constant, step, cosine, inverse_sqrt };
  Kind kind = Kind::constant;
  double lr = 1e-3;
  int64_t warmup = 0;  ///< updates
  double warmup_lr = 0;
  std::vector<int64_t> milestones = {};  ///< step: epochs done
  double gamma = 0.1;                    ///< step
  double min_lr = 0;                     ///< cosine
  int64_t total = 0;                     ///< cosine: updates of the whole run
};

/// The rate of update `update` (from 0) after `epoch` finished epochs.
double learning_rate(const ScheduleOptions& options, int64_t update, int64_t epoch);

}  // namespace sinkgrad
