// Calls into oneDNN and OpenBLAS; nothing else in the project knows them.
#include "ops/cpu/gemm.h"

#include <cblas.h>
#include <dnnl.h>
#include <omp.h>

#include <algorithm>

#include "core/check.h"
#include "core/parallel.h"

namespace sinkgrad::cpu {
namespace {

/// oneDNN and OpenBLAS take the calling thread's OpenMP setting as their thread count. (openblas_set_num_threads would change that
/// setting for the whole program.)
struct OneThread {
  OneThread() : saved(omp_get_max_threads()) {
    if (saved != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (saved != 1) omp_set_num_threads(saved);
  }
  int saved;
};

void library_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b, int64_t ldb,
                  float beta, float* c, int64_t ldc) {
  const OneThread one;
  const dnnl_status_t status = dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  require(status == dnnl_success, "gemm: oneDNN refused a product of (", m, ",", k, ") and (", k, ",", n, "), status ", static_cast<int>(status));
}

void library_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda, const double* b, int64_t ldb,
                  double beta, double* c, int64_t ldc) {
  const OneThread one;
  auto small = [](int64_t i) { return static_cast<blasint>(i); };
  cblas_dgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, small(m), small(n), small(k), alpha, a, small(lda), b,
              small(ldb), beta, c, small(ldc));
}

/// Rows (or columns) of C that one chunk computes: about 2 million multiply-adds, in multiples of 16.
int64_t stripe(int64_t length, int64_t across, int64_t k) {
  const int64_t wanted = (2 << 20) / std::max<int64_t>(1, across * k);
  return std::min(length, std::max<int64_t>(16, (wanted + 15) / 16 * 16));
}

}  // namespace

template <class T>
void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
    return;
  }
  library_gemm(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

template <class T>
void parallel_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c,
                   int64_t ldc) {
  if (m >= n) {
    parallel_for(m, stripe(m, n, k), [&](int64_t begin, int64_t end) {
      gemm(ta, tb, end - begin, n, k, alpha, a + (ta ? begin : begin * lda), lda, b, ldb, beta, c + begin * ldc, ldc);
    });
  } else {
    parallel_for(n, stripe(n, m, k), [&](int64_t begin, int64_t end) {
      gemm(ta, tb, m, end - begin, k, alpha, a, lda, b + (tb ? begin * ldb : begin), ldb, beta, c + begin, ldc);
    });
  }
}

template void gemm<float>(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float, float*, int64_t);
template void gemm<double>(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*, int64_t, double, double*, int64_t);
template void parallel_gemm<float>(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float, float*,
                                   int64_t);
template void parallel_gemm<double>(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*, int64_t, double, double*,
                                    int64_t);

}  // namespace sinkgrad::cpu
