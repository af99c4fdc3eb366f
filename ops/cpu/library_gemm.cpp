// Our threads share stripes of C; the libraries compute each on the calling thread, so that nobody spins or oversubscribes.
#include "ops/cpu/library_gemm.h"

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

void product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b, int64_t ldb, float beta,
             float* c, int64_t ldc) {
  const OneThread one;
  const dnnl_status_t status = dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  require(status == dnnl_success, "gemm: oneDNN refused a product of (", m, ",", k, ") and (", k, ",", n, "), status ", static_cast<int>(status));
}

void product(bool ta, bool tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda, const double* b, int64_t ldb, double beta,
             double* c, int64_t ldc) {
  const OneThread one;
  auto small = [](int64_t i) { return static_cast<blasint>(i); };
  cblas_dgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, small(m), small(n), small(k), alpha, a, small(lda), b,
              small(ldb), beta, c, small(ldc));
}

/// Rows (or columns) of C that one chunk computes: about 16 million multiply-adds, in multiples of 48.
int64_t stripe(int64_t length, int64_t across, int64_t k) {
  const int64_t wanted = (16 << 20) / std::max<int64_t>(1, across * k);
  return std::min(length, std::max<int64_t>(48, (wanted + 47) / 48 * 48));
}

}  // namespace

template <class T>
void library_gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b, int64_t ldb, T beta, T* c,
                  int64_t ldc, const T* bias) {
  const bool rows = m >= n;
  parallel_for(rows ? m : n, rows ? stripe(m, n, k) : stripe(n, m, k), [&](int64_t begin, int64_t end) {
    const int64_t i = rows ? begin : 0, j = rows ? 0 : begin, height = rows ? end - begin : m, width = rows ? n : end - begin;
    T* to = c + i * ldc + j;
    if (bias)
      for (int64_t r = 0; r < height; ++r)
        for (int64_t l = 0; l < width; ++l) to[r * ldc + l] = bias[j + l] + (beta == T(0) ? T(0) : beta * to[r * ldc + l]);
    product(ta, tb, height, width, k, alpha, a + (ta ? i : i * lda), lda, b + (tb ? j * ldb : j), ldb, bias ? T(1) : beta, to, ldc);
  });
}

template void library_gemm<float>(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*, int64_t, float, float*, int64_t,
                                  const float*);
template void library_gemm<double>(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*, int64_t, double, double*,
                                   int64_t, const double*);

}  // namespace sinkgrad::cpu
