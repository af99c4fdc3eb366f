// Dense products from oneDNN (f32) and OpenBLAS (f64), always one library thread on fixed stripes of ours:
// the libraries' own splits change results with the thread count.
#pragma once
#include <cstdint>

namespace sinkgrad::cpu {

/// C (m, n) = alpha op(A) op(B) + beta C, row-major with row lengths lda, ldb, ldc, on the calling thread.
/// op(A) is (m, k), op(B) is (k, n); beta = 0 never reads C.
template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta,
          T* c, int64_t ldc);

/// The same on several threads, split into stripes of C that depend on the sizes alone.
template <class T>
void parallel_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
                   T beta, T* c, int64_t ldc);

}  // namespace sinkgrad::cpu
