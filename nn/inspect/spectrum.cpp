// LAPACK is part of OpenBLAS, without a header of its own. A row-major (n, m) is a column-major (m, n), whose singular values are the same.
#include "nn/inspect/spectrum.h"

extern "C" void dgesdd_(const char* job, const int* m, const int* n, double* a, const int* lda, double* s, double* u, const int* ldu, double* vt,
                        const int* ldvt, double* work, const int* lwork, int* iwork, int* info, size_t job_length);

namespace sinkgrad {

Numbers singular_values(Numbers matrix, int64_t n, int64_t m) {
  const auto rows = static_cast<int>(m), columns = static_cast<int>(n), one = 1;
  const size_t count = static_cast<size_t>(std::min(n, m));
  Numbers values(count), work(1);
  if (count == 0) return values;
  std::vector<int> integers(8 * count);
  int size = -1, info = 0;
  for (int pass = 0; pass < 2; ++pass) {  // the first one asks how much memory the second one needs
    dgesdd_("N", &rows, &columns, matrix.data(), &rows, values.data(), nullptr, &one, nullptr, &one, work.data(), &size, integers.data(), &info, 1);
    require(info == 0, "singular values: a finite matrix is required, LAPACK's dgesdd stopped with ", info);
    size = static_cast<int>(work[0]);
    work.resize(std::max(work.size(), static_cast<size_t>(size)));
  }
  return values;
}

}  // namespace sinkgrad
