// The table in schedule.h is the specification.
#include "nn/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sinkgrad {

double learning_rate(const ScheduleOptions& options, int64_t update, int64_t epoch) {
  using Kind = ScheduleOptions::Kind;
  const double lr = options.lr;
  if (update < options.warmup)
    return options.warmup_lr + (lr - options.warmup_lr) * static_cast<double>(update) / static_cast<double>(options.warmup);
  switch (options.kind) {
    case Kind::constant: return lr;
    case Kind::step: {
      const auto passed = std::count_if(options.milestones.begin(), options.milestones.end(), [&](int64_t m) { return m <= epoch; });
      return lr * std::pow(options.gamma, static_cast<double>(passed));
    }
    case Kind::cosine: {
      const auto length = static_cast<double>(std::max<int64_t>(1, options.total - options.warmup));
      const double progress = std::min(1.0, static_cast<double>(update - options.warmup) / length);
      return options.min_lr + (lr - options.min_lr) * (1 + std::cos(std::numbers::pi * progress)) / 2;
    }
    case Kind::inverse_sqrt:
      return lr * std::sqrt(static_cast<double>(std::max<int64_t>(1, options.warmup)) / static_cast<double>(std::max<int64_t>(1, update)));
  }
  return lr;
}

}  // namespace sinkgrad
