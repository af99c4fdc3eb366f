// Dense matrix products. Threads share tiles of C, and every sum runs over k in one order: results are the same to the bit for any number of
// threads.
#pragma once
#include <cstdint>

#include "core/dtype.h"

namespace sinkgrad::cpu {

/// C (m, n) = alpha op(A) op(B) + bias + beta C, row-major with row lengths lda, ldb, ldc: op(A) is (m, k), op(B) is (k, n), bias (n) or null.
/// beta = 0 never reads C. In bf16 (of float only) A and alpha B are rounded, sums are f32; tf32 is computed in full.
template <class T>
void gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta,
          T* c, int64_t ldc, Precision precision = Precision::full, const T* bias = nullptr);

}  // namespace sinkgrad::cpu
