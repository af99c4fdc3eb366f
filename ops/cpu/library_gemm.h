// Large matrix products: oneDNN (f32) and OpenBLAS (f64). Nothing else in the project calls them for products.
#pragma once
#include <cstdint>

namespace sinkgrad::cpu {

/// From so many multiply-adds on the libraries compute. Below, gemm.cpp does: it packs operands once for all threads, and a training step of a text
/// encoder took 10 % less time with it (docs/cpu.md).
constexpr int64_t kLibraryWork = int64_t{1} << 32;

/// As gemm(), on stripes of C that depend on its shape alone, one thread each.
template <class T>
void library_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb,
                  T beta, T* c, int64_t ldc, const T* bias);

}  // namespace sinkgrad::cpu
