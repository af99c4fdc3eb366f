// Broadcasting by numpy's rule: shapes are aligned at the last dimension, and a dimension of 1 repeats.
#pragma once
#include <algorithm>
#include <array>

#include "core/shape.h"

namespace sinkgrad {

/// The common shape of two operands; throws ShapeError naming `op` and both shapes.
inline Shape broadcast_shape(const char* op, const Shape& a, const Shape& b) {
  if (a == b) return a;
  const int rank = std::max(a.rank(), b.rank());
  std::array<int64_t, Shape::kMaxRank> dims{};
  for (int k = 1; k <= rank; ++k) {
    const int64_t x = k <= a.rank() ? a[-k] : 1, y = k <= b.rank() ? b[-k] : 1;
    require<ShapeError>(x == y || x == 1 || y == 1, op, ": cannot broadcast dimension -", k, " (", x, " against ", y, "), got ", a, " and ", b);
    dims[static_cast<size_t>(rank - k)] = x == 1 ? y : x;
  }
  return Shape(std::span<const int64_t>(dims.data(), static_cast<size_t>(rank)));
}

/// Throws ShapeError unless `small` broadcasts to exactly `big`.
inline void require_broadcastable(const char* op, const char* what, const Shape& small, const Shape& big) {
  bool ok = small.rank() <= big.rank();
  for (int k = 1; ok && k <= small.rank(); ++k) ok = small[-k] == 1 || small[-k] == big[-k];
  require<ShapeError>(ok, op, ": ", what, " must broadcast to the input, got ", small, " for ", big);
}

/// Element strides of `small` walked in the order of `big`; 0 where it repeats.
struct BroadcastStrides {
  BroadcastStrides(const Shape& small, const Shape& big) : shape(big) {
    int64_t step = 1;
    for (int k = 1; k <= small.rank(); ++k) {
      stride[static_cast<size_t>(big.rank() - k)] = small[-k] == 1 ? 0 : step;
      step *= small[-k];
    }
  }
  /// Offset in the small tensor of element `flat` of the big one.
  int64_t offset(int64_t flat) const {
    int64_t at = 0;
    for (int i = shape.rank() - 1; i >= 0; --i) {
      at += flat % shape[i] * stride[static_cast<size_t>(i)];
      flat /= shape[i];
    }
    return at;
  }
  Shape shape;
  std::array<int64_t, Shape::kMaxRank> stride{};
};

}  // namespace sinkgrad
