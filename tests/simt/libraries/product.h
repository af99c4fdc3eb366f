// The column-major product behind the stand-ins of cuBLAS and cuBLASLt: checks every argument that the libraries document, then
// computes in the precision asked for. Operands are whole numbers of elements apart and must not overlap the result.
#pragma once
#include <string>

#include "core/check.h"
#include "cublas_v2.h"
#include "simt/executor.h"

namespace sinkgrad::simt {

struct ProductOperand {
  const void* data;
  cudaDataType type;
  int64_t leading, stride;
  bool transposed;
};

struct ColumnMajorProduct {
  std::string name;  ///< of the call, for messages
  int64_t m, n, k, batch;
  const void *alpha, *beta;
  ProductOperand a, b, c;
  void* d;
  cublasComputeType_t compute;
  const void* bias = nullptr;  ///< one element per row of D
};

void run(const ColumnMajorProduct& p);
/// Throws KernelError unless `ok`.
template <class... Parts>
void demand(bool ok, const std::string& call, const Parts&... sentence) {
  if (!ok) fail(cat(call, ": ", sentence...));
}
/// What a library may do with a workspace: leave nothing of what was there.
void scribble(void* workspace, size_t bytes, const std::string& call);

}  // namespace sinkgrad::simt
