// Sums over the rows of a matrix, in an order that does not depend on the number of threads.
#pragma once
#include <algorithm>

#include "core/parallel.h"

namespace sinkgrad::cpu {

/// total = the sum over rows of what row(r, sums) adds to `width` sums. Each chunk of rows has its own sums, and they are
/// added up in the order of the chunks. Chunks are short, so that f32 sums over many rows keep their digits.
template <class T, class Row>
void sum_rows(int64_t rows, int64_t width, T* total, Row row) {
  const int64_t grain = std::clamp<int64_t>(grain_for(width), 32, 256), chunks = (rows + grain - 1) / grain;
  ScratchScope scratch;
  T* partial = scratch.take<T>(chunks * width);
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    T* sums = partial + begin / grain * width;
    std::fill_n(sums, width, T(0));
    for (int64_t r = begin; r < end; ++r) row(r, sums);
  });
  std::fill_n(total, width, T(0));
  for (int64_t c = 0; c < chunks; ++c)
    for (int64_t j = 0; j < width; ++j) total[j] += partial[c * width + j];
}

}  // namespace sinkgrad::cpu
