// What the two Sinkhorn ops share on the CPU: reading the attributes and excluding masked entries.
#pragma once
#include <limits>

#include "ops/cpu/sinkhorn_matrix.h"

namespace sinkgrad::cpu {

inline SinkhornTask sinkhorn_task(const Attrs& attrs, int64_t n, int64_t m) {
  return {n,
          m,
          attrs.integer("iterations"),
          attrs.get("tolerance"),
          static_cast<SinkhornGradient>(attrs.integer("gradient")),
          attrs.flag("rows_sum_to_inverse_count")};
}

/// The state of matrix i in the saved buffers.
template <class T>
SinkhornState<T> sinkhorn_state(std::span<const View> saved, const SinkhornTask& task, int64_t i) {
  return {saved[0].as<T>() + i * task.row_steps() * task.n, saved[1].as<T>() + i * task.column_steps() * task.m,
          saved[2].as<T>() + i * kSinkhornStats};
}

/// Sets masked scores of batch entry b to -inf. `masks`: key, query, pair; any may be absent.
template <class T>
void exclude_masked(std::span<const View> masks, int64_t b, int64_t n, int64_t m, T* x) {
  constexpr T kExcluded = -std::numeric_limits<T>::infinity();
  const int32_t* keys = masks[0] ? masks[0].as<int32_t>() + b * m : nullptr;
  const int32_t* queries = masks[1] ? masks[1].as<int32_t>() + b * n : nullptr;
  const int32_t* pairs = masks[2] ? masks[2].as<int32_t>() + (masks[2].shape.rank() == 3 ? b * n * m : 0) : nullptr;
  if (!keys && !queries && !pairs) return;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j)
      if ((keys && keys[j]) || (queries && queries[i]) || (pairs && pairs[i * m + j])) x[i * m + j] = kExcluded;
}

}  // namespace sinkgrad::cpu
