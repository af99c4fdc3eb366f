// The one file that calls cuBLAS and cuBLASLt. They are column-major: row-major C = A B is their C^T = B^T A^T, so b comes first.
// What makes results repeat to the bit: one stream, workspaces of our own (cuBLAS chooses kernels by the workspace it has, and from
// its own pool by what other streams hold), no atomics (cuBLAS's default) and, for cuBLASLt, a choice of kernel that is made once
// per shape and splits sums only with a reduction as a step of its own.
#include "cuda/products.h"

#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "core/check.h"
#include "cuda/context.h"

namespace sinkgrad::cuda {
namespace {

/// What NVIDIA recommends for Hopper; earlier GPUs need less.
constexpr size_t kWorkspace = size_t{32} << 20;
/// Kernels count a batch in a grid dimension that ends here.
constexpr int64_t kLongestBatch = 65535;

cudaDataType type_of(const Matrix& o) { return o.type == ElementType::f64 ? CUDA_R_64F : o.type == ElementType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }
cudaDataType result_type(const Product& p) { return p.a.type == ElementType::f64 ? CUDA_R_64F : CUDA_R_32F; }
size_t size_of(ElementType t) { return t == ElementType::f64 ? 8 : t == ElementType::bf16 ? 2 : 4; }
cublasOperation_t op_of(const Matrix& o) { return o.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

cublasComputeType_t compute_type(const Product& p) {
  if (p.a.type == ElementType::f64) return CUBLAS_COMPUTE_64F;
  return p.precision == Precision::tf32 && p.a.type == ElementType::f32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/// alpha or beta in the type that sums are made in.
class Factor {
 public:
  Factor(double value, const Product& p) : wide_(value), narrow_(static_cast<float>(value)), is_wide_(p.a.type == ElementType::f64) {}
  const void* pointer() const { return is_wide_ ? static_cast<const void*>(&wide_) : &narrow_; }

 private:
  double wide_;
  float narrow_;
  bool is_wide_;
};

void check(cublasStatus_t status, const Product& p) {
  require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "product: cuBLAS refused ", p.batch, " of (", p.rows, ",", p.inner, ") and (", p.inner, ",",
                       p.columns, "): ", cublasGetStatusString(status));
}

/// How cuBLASLt computes the products of one shape with a bias. Plain bytes: nothing to destroy.
struct Plan {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, c;
  cublasLtMatmulAlgo_t algorithm;
  size_t workspace;
};
using PlanKey = std::array<int64_t, 13>;

/// The largest power of two, up to 256, that divides an address: kernels with wide loads need 16.
uint32_t alignment_of(const void* p) {
  const auto bits = reinterpret_cast<uintptr_t>(p) | 256u;
  return static_cast<uint32_t>(bits & ~(bits - 1));
}

void lay_out(cublasLtMatrixLayoutOpaque_t& layout, const Matrix& o, int64_t rows, int64_t columns, const Product& p) {
  if (o.transposed) std::swap(rows, columns);
  check(cublasLtMatrixLayoutInit(&layout, type_of(o), static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), o.row_length), p);
}

/// Asks cuBLASLt for its first choice; none where it has no kernel.
std::optional<Plan> make_plan(const Product& p, const void* bias) {
  Plan plan;
  check(cublasLtMatmulDescInit(&plan.operation, compute_type(p), result_type(p)), p);
  auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulDescSetAttribute(&plan.operation, attribute, &value, sizeof value), p);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, op_of(p.b));
  set(CUBLASLT_MATMUL_DESC_TRANSB, op_of(p.a));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  lay_out(plan.a, p.a, p.rows, p.inner, p);
  lay_out(plan.b, p.b, p.inner, p.columns, p);
  check(cublasLtMatrixLayoutInit(&plan.c, result_type(p), static_cast<uint64_t>(p.columns), static_cast<uint64_t>(p.rows), p.columns), p);

  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), p);
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value), p);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.b.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.a.data));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.c));
  cublasLtMatmulHeuristicResult_t result;
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(context().cublas_lt(), &plan.operation, &plan.b, &plan.a, &plan.c, &plan.c, &preference, 1, &result, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) return {};
  check(status, p);
  check(result.state, p);
  plan.algorithm = result.algo;
  plan.workspace = result.workspaceSize;
  return plan;
}

const std::optional<Plan>& plan_of(const Product& p, const void* bias) {
  static std::map<PlanKey, std::optional<Plan>> plans;
  const PlanKey key{p.rows,
                    p.columns,
                    p.inner,
                    p.a.row_length,
                    p.b.row_length,
                    p.a.transposed,
                    p.b.transposed,
                    static_cast<int64_t>(p.a.type),
                    static_cast<int64_t>(p.precision),
                    alignment_of(p.a.data),
                    alignment_of(p.b.data),
                    alignment_of(p.c),
                    alignment_of(bias)};
  const auto at = plans.find(key);
  return at != plans.end() ? at->second : plans.emplace(key, make_plan(p, bias)).first->second;
}

}  // namespace

Matrix Matrix::at(int64_t i) const {
  Matrix one = *this;
  one.data = static_cast<const char*>(data) + static_cast<size_t>(i * step) * size_of(type);
  return one;
}

void multiply(const Product& p) {
  if (context().launches_are_suppressed()) return;
  const Factor alpha(p.alpha, p), beta(p.beta, p);
  const Scratch scope;
  cublasContext* handle = context().cublas();
  check(cublasSetWorkspace(handle, context().take_scratch(kWorkspace), kWorkspace), p);
  if (p.batch == 1) {  // this call may also split a long inner dimension over the device
    check(
        cublasGemmEx_64(handle, op_of(p.b), op_of(p.a), p.columns, p.rows, p.inner, alpha.pointer(), p.b.data, type_of(p.b), p.b.row_length, p.a.data,
                        type_of(p.a), p.a.row_length, beta.pointer(), p.c, result_type(p), p.columns, compute_type(p), CUBLAS_GEMM_DEFAULT),
        p);
    return;
  }
  const int64_t step = p.rows * p.columns;
  const size_t step_bytes = static_cast<size_t>(step) * (p.a.type == ElementType::f64 ? 8 : 4);
  for (int64_t first = 0; first < p.batch; first += kLongestBatch)
    check(cublasGemmStridedBatchedEx_64(handle, op_of(p.b), op_of(p.a), p.columns, p.rows, p.inner, alpha.pointer(), p.b.at(first).data, type_of(p.b),
                                        p.b.row_length, p.b.step, p.a.at(first).data, type_of(p.a), p.a.row_length, p.a.step, beta.pointer(),
                                        static_cast<char*>(p.c) + static_cast<size_t>(first) * step_bytes, result_type(p), p.columns, step,
                                        std::min(kLongestBatch, p.batch - first), compute_type(p), CUBLAS_GEMM_DEFAULT),
          p);
}

bool multiply_and_add_bias(const Product& p, const void* bias) {
  if (context().launches_are_suppressed()) return true;
  const std::optional<Plan>& known = plan_of(p, bias);
  if (!known) return false;
  Plan plan = *known;
  check(cublasLtMatmulDescSetAttribute(&plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias), p);
  const Factor alpha(p.alpha, p), beta(p.beta, p);
  const Scratch scope;
  check(cublasLtMatmul(context().cublas_lt(), &plan.operation, alpha.pointer(), p.b.data, &plan.b, p.a.data, &plan.a, beta.pointer(), p.c, &plan.c,
                       p.c, &plan.c, &plan.algorithm, context().take_scratch(plan.workspace), plan.workspace, context().stream()),
        p);
  return true;
}

}  // namespace sinkgrad::cuda
