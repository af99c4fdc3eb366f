// Parallel loops by OpenMP, the runtime that oneDNN and OpenBLAS use too: one pool of threads. ops/cpu/library_gemm.cpp alone also knows it.
#include <omp.h>

#include <algorithm>

#include "core/parallel.h"

namespace sinkgrad {

void set_threads(int n) { omp_set_num_threads(std::max(1, n)); }
int threads() { return omp_get_max_threads(); }
int threads_of_loop() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

namespace detail {
void run_chunks(int64_t chunks, void (*body)(void*, int64_t), void* context) {
  if (threads_of_loop() == 1) {
    for (int64_t c = 0; c < chunks; ++c) body(context, c);
    return;
  }
  // Each thread a run of chunks, the same in every loop of as many: what an op left in its cache is the next op's input, and its scratch memory
  // settles.
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < chunks; ++c) body(context, c);
}
}  // namespace detail

}  // namespace sinkgrad
