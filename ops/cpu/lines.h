// A tensor seen as lines along one axis: what softmax, log-sum-exp and reductions loop over.
#pragma once
#include "core/shape.h"

namespace sinkgrad::cpu {

struct Lines {
  Lines(const Shape& shape, int axis)
      : count(shape.count(0, axis) * shape.count(axis + 1, shape.rank())), length(shape[axis]), stride(shape.count(axis + 1, shape.rank())) {}
  int64_t count, length, stride;
  /// Flat index of the first element of line i.
  int64_t offset(int64_t i) const { return i / stride * stride * length + i % stride; }

  /// The elements of line i one after the other: in place where they already are, else copied to `buffer`.
  template <class T>
  const T* gather(const T* x, int64_t i, T* buffer) const {
    x += offset(i);
    if (stride == 1) return x;
    for (int64_t k = 0; k < length; ++k) buffer[k] = x[k * stride];
    return buffer;
  }
};

}  // namespace sinkgrad::cpu
