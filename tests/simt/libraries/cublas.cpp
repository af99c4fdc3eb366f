// Stand-in for cuBLAS: products by plain loops, sums in the type the real library uses. A call without a workspace of the caller's is
// refused: cuBLAS would take one from its own pool, and two runs could differ.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "cublas_v2.h"
#include "product.h"
#include "simt/stream.h"

struct cublasContext {
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

namespace sinkgrad::simt {
namespace {

size_t size_of(cudaDataType t) { return t == CUDA_R_64F ? 8 : t == CUDA_R_32F ? 4 : 2; }

/// The elements that `o` spans in one product, stored with `rows` elements to a column.
int64_t extent(const ProductOperand& o, int64_t rows, int64_t columns) { return rows * columns == 0 ? 0 : (columns - 1) * o.leading + rows; }

void check_operand(const ColumnMajorProduct& p, const char* which, const ProductOperand& o, int64_t rows, int64_t columns) {
  if (o.transposed) std::swap(rows, columns);
  demand(o.leading >= std::max<int64_t>(1, rows), p.name, "the leading dimension of ", which, " must be at least ", std::max<int64_t>(1, rows),
         ", got ", o.leading);
  demand(o.data != nullptr || rows * columns == 0, p.name, which, " is null");
  demand(reinterpret_cast<uintptr_t>(o.data) % size_of(o.type) == 0, p.name, which, " is not aligned to its elements");
  demand(o.stride >= 0, p.name, "the stride of ", which, " is ", o.stride);
}

/// Half-open range of addresses that an operand takes.
std::pair<const char*, const char*> range(const ColumnMajorProduct& p, const ProductOperand& o, int64_t rows, int64_t columns) {
  if (o.transposed) std::swap(rows, columns);
  const auto* begin = static_cast<const char*>(o.data);
  return {begin, begin + static_cast<size_t>((p.batch - 1) * o.stride + extent(o, rows, columns)) * size_of(o.type)};
}

void check(const ColumnMajorProduct& p) {
  demand(p.m >= 0 && p.n >= 0 && p.k >= 0, p.name, "sizes must not be negative, got ", p.m, ", ", p.n, ", ", p.k);
  demand(p.alpha && p.beta, p.name, "alpha or beta is null");
  const bool wide = p.compute == CUBLAS_COMPUTE_64F, tf32 = p.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const bool types = p.a.type == p.b.type && (wide ? p.a.type == CUDA_R_64F : p.a.type == CUDA_R_32F || (p.a.type == CUDA_R_16BF && !tf32)) &&
                     p.c.type == (wide ? CUDA_R_64F : CUDA_R_32F);
  demand(types, p.name, "has no kernel for operands of types ", static_cast<int>(p.a.type), ", ", static_cast<int>(p.b.type), ", ",
         static_cast<int>(p.c.type), " in compute type ", static_cast<int>(p.compute));
  check_operand(p, "A", p.a, p.m, p.k);
  check_operand(p, "B", p.b, p.k, p.n);
  check_operand(p, "C", p.c, p.m, p.n);
  demand(p.batch <= 1 || p.c.stride >= extent(p.c, p.m, p.n), p.name, "the results of a batch overlap: stride ", p.c.stride);
  if (p.m * p.n * p.k * p.batch == 0) return;
  const auto c = range(p, p.c, p.m, p.n);
  for (const auto& other : {range(p, p.a, p.m, p.k), range(p, p.b, p.k, p.n)})
    demand(c.second <= other.first || other.second <= c.first, p.name, "an operand overlaps the result");
}

float read(const ProductOperand& o, int64_t i, bool tf32) {
  if (o.type == CUDA_R_16BF) return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(o.data)[i]) << 16);
  const float x = static_cast<const float*>(o.data)[i];
  const auto bits = std::bit_cast<uint32_t>(x);
  return tf32 && (bits & 0x7f800000u) != 0x7f800000u ? std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu) : x;
}

/// op(X) of one product as `length` consecutive elements for each of `count` rows (of A) or columns (of B).
template <class T>
std::vector<T> pack(const ColumnMajorProduct& p, const ProductOperand& o, int64_t index, int64_t count, int64_t length, bool rows) {
  std::vector<T> packed(static_cast<size_t>(count * length));
  const bool strided = rows != o.transposed;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t l = 0; l < length; ++l) {
      const int64_t at = index * o.stride + (strided ? l * o.leading + i : i * o.leading + l);
      T& to = packed[static_cast<size_t>(i * length + l)];
      if constexpr (sizeof(T) == 8)
        to = static_cast<const double*>(o.data)[at];
      else
        to = read(o, at, p.compute == CUBLAS_COMPUTE_32F_FAST_TF32);
    }
  return packed;
}

template <class T>
void run_typed(const ColumnMajorProduct& p, T alpha, T beta) {
  for (int64_t index = 0; index < p.batch; ++index) {
    const std::vector<T> a = pack<T>(p, p.a, index, p.m, p.k, true), b = pack<T>(p, p.b, index, p.n, p.k, false);
    for (int64_t j = 0; j < p.n; ++j)
      for (int64_t i = 0; i < p.m; ++i) {
        T s = 0;
        for (int64_t l = 0; l < p.k; ++l) s += a[static_cast<size_t>(i * p.k + l)] * b[static_cast<size_t>(j * p.k + l)];
        const int64_t at = index * p.c.stride + j * p.c.leading + i;
        T value = alpha * s;
        if (beta != T(0)) value += beta * static_cast<const T*>(p.c.data)[at];
        if (p.bias) value += static_cast<const T*>(p.bias)[i];
        static_cast<T*>(p.d)[at] = value;
      }
  }
}

}  // namespace

void run(const ColumnMajorProduct& p) {
  check(p);
  // The library reads alpha and beta during the call, the operands when the stream gets there.
  const auto read_now = [&]<class T>() {
    enqueue([p, alpha = *static_cast<const T*>(p.alpha), beta = *static_cast<const T*>(p.beta)] { run_typed<T>(p, alpha, beta); });
  };
  p.c.type == CUDA_R_64F ? read_now.operator()<double>() : read_now.operator()<float>();
}

void scribble(void* workspace, size_t bytes, const std::string& call) {
  demand(bytes == 0 || (workspace && reinterpret_cast<uintptr_t>(workspace) % 256 == 0), call, "the workspace must be 256-byte aligned");
  const size_t part = std::min<size_t>(bytes, 64);
  if (part == 0) return;
  enqueue([=] {
    std::memset(workspace, 0xA5, part);
    std::memset(static_cast<char*>(workspace) + bytes - part, 0xA5, part);
  });
}

}  // namespace sinkgrad::simt

using namespace sinkgrad::simt;

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t) {
  *handle = {};  // back to a workspace of the library's own
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t bytes) {
  *handle = {workspace, bytes};
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS ? "success" : "not supported"; }

cublasStatus_t cublasGemmStridedBatchedEx_64(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int64_t m, int64_t n,
                                             int64_t k, const void* alpha, const void* A, cudaDataType Atype, int64_t lda, long long int strideA,
                                             const void* B, cudaDataType Btype, int64_t ldb, long long int strideB, const void* beta, void* C,
                                             cudaDataType Ctype, int64_t ldc, long long int strideC, int64_t batchCount,
                                             cublasComputeType_t computeType, cublasGemmAlgo_t algo) {
  const char* name = "cublasGemmStridedBatchedEx_64";
  demand(handle != nullptr, name, "the handle is null");
  demand(handle->workspace_bytes > 0, name, "no workspace was set");
  demand(algo == CUBLAS_GEMM_DEFAULT, name, "algorithms are cuBLAS's choice");
  demand(batchCount >= 0 && batchCount <= 65535, name, "a batch must have at most 65535 products, got ", batchCount);
  scribble(handle->workspace, handle->workspace_bytes, name);
  run({name,
       m,
       n,
       k,
       batchCount,
       alpha,
       beta,
       {A, Atype, lda, strideA, transa == CUBLAS_OP_T},
       {B, Btype, ldb, strideB, transb == CUBLAS_OP_T},
       {C, Ctype, ldc, strideC, false},
       C,
       computeType});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx_64(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int64_t m, int64_t n, int64_t k,
                               const void* alpha, const void* A, cudaDataType Atype, int64_t lda, const void* B, cudaDataType Btype, int64_t ldb,
                               const void* beta, void* C, cudaDataType Ctype, int64_t ldc, cublasComputeType_t computeType, cublasGemmAlgo_t algo) {
  return cublasGemmStridedBatchedEx_64(handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta, C, Ctype, ldc, 0, 1,
                                       computeType, algo);
}

}  // extern "C"
