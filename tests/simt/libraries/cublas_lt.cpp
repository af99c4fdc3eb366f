// Stand-in for cuBLASLt. Its descriptors hold what was set; an algorithm holds the problem it was chosen for, and is refused for any
// other. Like the real library it has no fused kernel for operands that wide loads cannot reach, so callers need another way.
#include <cstring>

#include "cublasLt.h"
#include "product.h"

struct cublasLtContext {};

namespace {

using namespace sinkgrad::simt;

constexpr size_t kWorkspace = 1024;
constexpr uint32_t kWideLoad = 16;

struct Layout {
  cudaDataType type;
  int64_t rows, columns, leading;
};
struct Operation {
  cublasComputeType_t compute;
  cublasOperation_t transposed_a = CUBLAS_OP_N, transposed_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Preference {
  size_t workspace = 0;
  uint32_t reductions = 7, alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};
struct Algorithm {
  int64_t m, n, k, compute;
  uint32_t alignment[4];
};

template <class T, class Opaque>
T content(const Opaque* opaque) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  T value;
  std::memcpy(static_cast<void*>(&value), opaque, sizeof value);
  return value;
}
template <class T, class Opaque>
void store(Opaque* opaque, const T& value) {
  static_assert(sizeof(T) <= sizeof(Opaque));
  std::memcpy(opaque, &value, sizeof value);
}

/// Copies an attribute, whose size must be that of the field.
template <class T>
void assign(T& field, const void* value, size_t bytes, const char* call) {
  demand(bytes == sizeof(T), call, "the attribute has ", sizeof(T), " bytes, got ", bytes);
  std::memcpy(&field, value, bytes);
}

Algorithm problem(const Operation& o, const Layout& a, const Layout& b, const Layout& d, const char* call) {
  const bool ta = o.transposed_a == CUBLAS_OP_T, tb = o.transposed_b == CUBLAS_OP_T;
  const Algorithm p{ta ? a.columns : a.rows, tb ? b.rows : b.columns, ta ? a.rows : a.columns, o.compute, {}};
  demand(p.k == (tb ? b.columns : b.rows) && p.m == d.rows && p.n == d.columns, call, "the layouts do not fit: ", a.rows, "x", a.columns, ", ",
         b.rows, "x", b.columns, " and ", d.rows, "x", d.columns);
  return p;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* lightHandle) {
  *lightHandle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t lightHandle) {
  delete lightHandle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t matLayout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld) {
  store(matLayout, Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(cols), ld});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t matmulDesc, cublasComputeType_t computeType, cudaDataType scaleType) {
  demand((scaleType == CUDA_R_64F) == (computeType == CUBLAS_COMPUTE_64F), __func__, "alpha and beta must have the type of the sums");
  store(matmulDesc, Operation{computeType});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t matmulDesc, cublasLtMatmulDescAttributes_t attr, const void* buf,
                                              size_t sizeInBytes) {
  auto o = content<Operation>(matmulDesc);
  switch (attr) {
    case CUBLASLT_MATMUL_DESC_TRANSA: assign(o.transposed_a, buf, sizeInBytes, __func__); break;
    case CUBLASLT_MATMUL_DESC_TRANSB: assign(o.transposed_b, buf, sizeInBytes, __func__); break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: assign(o.epilogue, buf, sizeInBytes, __func__); break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: assign(o.bias, buf, sizeInBytes, __func__); break;
  }
  store(matmulDesc, o);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t pref) {
  store(pref, Preference{});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t pref, cublasLtMatmulPreferenceAttributes_t attr, const void* buf,
                                                    size_t sizeInBytes) {
  auto p = content<Preference>(pref);
  if (attr == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    assign(p.workspace, buf, sizeInBytes, __func__);
  else if (attr == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    assign(p.reductions, buf, sizeInBytes, __func__);
  else
    assign(p.alignment[attr - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], buf, sizeInBytes, __func__);
  store(pref, p);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
                                              cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t Ddesc,
                                              cublasLtMatmulPreference_t preference, int requestedAlgoCount,
                                              cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int* returnAlgoCount) {
  demand(requestedAlgoCount > 0, __func__, "no algorithms were asked for");
  const auto wanted = content<Preference>(preference);
  demand((wanted.reductions & 1u) == 0, __func__, "sums that are split and added in place, in any order, are allowed");
  Algorithm found = problem(content<Operation>(operationDesc), content<Layout>(Adesc), content<Layout>(Bdesc), content<Layout>(Ddesc), __func__);
  std::memcpy(found.alignment, wanted.alignment, sizeof found.alignment);
  *returnAlgoCount = 0;
  for (const uint32_t a : wanted.alignment)
    if (a < kWideLoad) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (wanted.workspace < kWorkspace) return CUBLAS_STATUS_NOT_SUPPORTED;
  *returnAlgoCount = 1;
  heuristicResultsArray[0] = {{}, kWorkspace, CUBLAS_STATUS_SUCCESS, 1, {}};
  store(&heuristicResultsArray[0].algo, found);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t Adesc, const void* B, cublasLtMatrixLayout_t Bdesc, const void* beta, const void* C,
                              cublasLtMatrixLayout_t Cdesc, void* D, cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspaceSizeInBytes, cudaStream_t) {
  demand(lightHandle != nullptr, __func__, "the handle is null");
  demand(algo != nullptr, __func__, "no algorithm was given: the library would choose one in every call");
  const auto o = content<Operation>(computeDesc);
  const auto a = content<Layout>(Adesc), b = content<Layout>(Bdesc), c = content<Layout>(Cdesc), d = content<Layout>(Ddesc);
  const Algorithm now = problem(o, a, b, d, __func__), chosen = content<Algorithm>(algo);
  demand(now.m == chosen.m && now.n == chosen.n && now.k == chosen.k && now.compute == chosen.compute, __func__,
         "the algorithm was chosen for another problem");
  const void* pointers[] = {A, B, C, D};
  for (int i = 0; i < 4; ++i)
    demand(reinterpret_cast<uintptr_t>(pointers[i]) % chosen.alignment[i] == 0, __func__, "operand ", i, " is not aligned to ", chosen.alignment[i],
           " bytes, for which the algorithm was chosen");
  demand(o.epilogue != CUBLASLT_EPILOGUE_BIAS || o.bias, __func__, "the bias is null");
  demand(c.rows == d.rows && c.columns == d.columns && c.leading == d.leading && c.type == d.type, __func__, "C and D have different layouts");
  demand(workspaceSizeInBytes >= kWorkspace, __func__, "the workspace is smaller than the algorithm needs");
  scribble(workspace, workspaceSizeInBytes, __func__);
  run({__func__,
       now.m,
       now.n,
       now.k,
       1,
       alpha,
       beta,
       {A, a.type, a.leading, 0, o.transposed_a == CUBLAS_OP_T},
       {B, b.type, b.leading, 0, o.transposed_b == CUBLAS_OP_T},
       {C, c.type, c.leading, 0, false},
       D,
       o.compute,
       o.epilogue == CUBLASLT_EPILOGUE_BIAS ? o.bias : nullptr});
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
