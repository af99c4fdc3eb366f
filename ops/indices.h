// The range check of index inputs, before any kernel runs.
#pragma once
#include <optional>

#include "core/tape.h"

namespace sinkgrad {

/// Throws Error naming value and position unless every index is `ignored` or lies in 0 .. limit-1. `what` names one of them,
/// `from` what they select from. An absent input or another dtype is left to the shape rule; where the host cannot read the
/// indices, the kernels of the device check them.
template <class... Parts>
void require_indices(const char* op, const char* what, Var indices, int64_t limit, std::optional<int64_t> ignored, const Parts&... from) {
  if (!indices || indices.tape->device().kind() != DeviceKind::cpu || indices.tape->value(indices).dtype != DType::i32) return;
  const Shape& shape = indices.shape();
  const auto values = indices.span<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t index = values[i];
    if ((index >= 0 && index < limit) || index == ignored) continue;
    Shape position = shape;
    auto rest = static_cast<int64_t>(i);
    for (int k = shape.rank() - 1; k >= 0; rest /= shape[k--]) position.set(k, rest % shape[k]);
    throw Error(cat(op, ": ", what, " ", index, " at position ", position, " must lie in 0..", limit - 1, " of ", from..., ", got ", shape));
  }
}

}  // namespace sinkgrad
