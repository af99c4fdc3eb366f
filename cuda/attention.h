// What the variants of fused Sinkhorn attention share: the problem as kernels see it, and which variant runs.
#pragma once
#include "cuda/kernel.h"
#include "ops/sinkhorn_options.h"

namespace sinkgrad::cuda {

/// One call of sinkhorn_attention. Q (B, N, H D), K (B, M, H D), V (B, M, H E), O (B, N, H E); matrix i = batch * heads + head.
struct AttentionShape {
  AttentionShape(std::span<const View> in, const Attrs& attrs)
      : batch(in[0].shape[0]),
        heads(attrs.integer("heads")),
        n(in[0].shape[1]),
        m(in[1].shape[1]),
        d(in[0].shape[2] / heads),
        e(in[2].shape[2] / heads),
        iterations(attrs.integer("iterations")),
        scale(attrs.get("scale")),
        tolerance(attrs.get("tolerance")),
        gradient(static_cast<SinkhornGradient>(attrs.integer("gradient"))),
        rows_sum_to_inverse_count(attrs.flag("rows_sum_to_inverse_count")),
        expose_plan(attrs.flag("expose_plan")) {}
  int64_t batch, heads, n, m, d, e;
  int64_t iterations;
  double scale, tolerance;
  SinkhornGradient gradient;
  bool rows_sum_to_inverse_count, expose_plan;
  __device__ __host__ int64_t matrices() const { return batch * heads; }
  __device__ __host__ int64_t row_steps() const { return (iterations + 1) / 2; }
  __device__ __host__ int64_t column_steps() const { return iterations / 2; }
  // Element of Q (row i), of K (row j), of V and of O for batch entry b and head h.
  __device__ int64_t q_at(int64_t b, int64_t h, int64_t i) const { return (b * n + i) * heads * d + h * d; }
  __device__ int64_t k_at(int64_t b, int64_t h, int64_t j) const { return (b * m + j) * heads * d + h * d; }
  __device__ int64_t v_at(int64_t b, int64_t h, int64_t j) const { return (b * m + j) * heads * e + h * e; }
  __device__ int64_t o_at(int64_t b, int64_t h, int64_t i) const { return (b * n + i) * heads * e + h * e; }
};

/// The masks of a call; absent ones exclude nothing.
struct AttentionMasksView {
  AttentionMasksView() = default;
  explicit AttentionMasksView(std::span<const View> in)
      : keys(span<const int32_t>(in[3])),
        queries(span<const int32_t>(in[4])),
        pairs(span<const int32_t>(in[5])),
        pairs_per_batch(in[5] && in[5].shape.rank() == 3) {}
  Span<const int32_t> keys, queries, pairs;
  bool pairs_per_batch = false;
  __device__ bool key(const AttentionShape& s, int64_t b, int64_t j) const { return keys && keys[b * s.m + j] != 0; }
  __device__ bool query(const AttentionShape& s, int64_t b, int64_t i) const { return queries && queries[b * s.n + i] != 0; }
  __device__ bool pair(const AttentionShape& s, int64_t b, int64_t i, int64_t j) const { return pairs && pairs[pair_at(s, b, i, j)] != 0; }
  __device__ int64_t pair_at(const AttentionShape& s, int64_t b, int64_t i, int64_t j) const {
    return (pairs_per_batch ? b * s.n * s.m : 0) + i * s.m + j;
  }
};

/// How a call is computed; DESIGN: docs/gpu.md.
enum class AttentionVariant : uint8_t {
  automatic,
  block,      ///< one thread block per matrix, everything on chip
  cluster,    ///< up to 8 blocks per matrix share its rows (sm_90)
  streaming,  ///< stripes of the scores recomputed from Q and K
};
/// Tests and benchmarks may force a variant; a variant that cannot run a problem throws then.
AttentionVariant& forced_attention_variant();

// Each returns false, having done nothing, when the problem does not fit it. T is float or double.
// resident: AttentionVariant::block and ::cluster; streaming takes everything.
template <class T>
bool resident_attention_forward(const AttentionShape& s, const Forward& f, AttentionVariant variant);
template <class T>
bool resident_attention_backward(const AttentionShape& s, const Backward& b, AttentionVariant variant);
template <class T>
void streaming_attention_forward(const AttentionShape& s, const Forward& f);
template <class T>
void streaming_attention_backward(const AttentionShape& s, const Backward& b);

}  // namespace sinkgrad::cuda
