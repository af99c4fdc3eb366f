// Multi-head attention, softmax or Sinkhorn: one operator, told apart by the number of half-steps.
// Masks name their polarity: nonzero excludes.
#pragma once
#include <array>
#include <string>

#include "nn/layers.h"

namespace sinkgrad {

/// Attention between projected queries, keys and values. Options may be changed between steps, so that the weights of a
/// Transformer can run as a Sinkformer; the last call can be looked into until the tape is reset.
struct AttentionHeads {
  int count = 1;
  double scale = 1;  ///< of the scores
  SinkhornOptions sinkhorn = {};
  Var last = {};  ///< output of the last call

  /// (B, N, H D), (B, M, H D), (B, M, H E) -> (B, N, H E).
  Var operator()(Var q, Var k, Var v, const AttentionMasks& masks = {}) { return last = sinkhorn_attention(q, k, v, count, scale, sinkhorn, masks); }
  /// The plans (B, H, N, M) of the last call; needs sinkhorn.expose_plan.
  View plan() const { return attention_plan(last); }
  SinkhornReport report() const { return sinkhorn_report(last); }
};

struct AttentionOptions {
  int64_t dim = 0;  ///< width of the model
  int heads = 1;
  int64_t head_dim = 0;  ///< 0: dim / heads
  bool qkv_bias = true, output_bias = true;
  bool scale_by_model_width = false;  ///< scores times 1/sqrt(dim) instead of 1/sqrt(head_dim)
  bool padding_queries_vote = false;  ///< masked queries still take part, as in the authors' text model: padding then changes real tokens
  InitScheme init = InitScheme::torch;
  SinkhornOptions sinkhorn = {};
};

/// What the projections are called. Either one packed matrix (3 inner, dim) with the queries' rows first, or three Linear layers.
struct AttentionNames {
  std::string packed_weight = {}, packed_bias = {};
  std::string query = {}, key = {}, value = {};
  std::string output = {};

  static AttentionNames torch() { return {.packed_weight = "in_proj_weight", .packed_bias = "in_proj_bias", .output = "out_proj"}; }
  static AttentionNames fairseq() { return {.query = "q_proj", .key = "k_proj", .value = "v_proj", .output = "out_proj"}; }
};

/// Projected keys and values (B, M, inner), for attention that reads them again and again.
struct KeyValues {
  Var keys, values;
};

inline constexpr int64_t kAllTokens = -1;
/// The first `wanted` tokens of (B, N, dim): what a caller reads of a layer's output need not be computed for the others.
Var first_tokens(Var x, int64_t wanted);

/// Projects, attends, projects back. Self-attention: attention(x, x); cross-attention: attention(x, memory).
class MultiHeadAttention : public Module {
 public:
  MultiHeadAttention(Module& parent, const std::string& name, const AttentionOptions& options, const AttentionNames& names = AttentionNames::torch());
  /// (B, N, dim), (B, M, dim) -> (B, N, dim), or (B, wanted, dim): the results of the first queries, of which all take part.
  Var operator()(Var queries, Var keys, const AttentionMasks& masks = {}, int64_t wanted = kAllTokens) {
    return (*this)(queries, project(keys), masks, wanted);
  }
  Var operator()(Var queries, const KeyValues& memory, const AttentionMasks& masks = {}, int64_t wanted = kAllTokens);
  KeyValues project(Var keys) const { return {qkv_[1](keys), qkv_[2](keys)}; }

  AttentionHeads heads;

 private:
  /// Rows begin .. end-1 of a weight and its bias, which the three projections share when packed.
  struct Projection {
    Parameter* weight;
    Parameter* bias;  // null: none
    int64_t begin, end;
    Var operator()(Var x) const;
  };
  std::array<Projection, 3> projections(const AttentionOptions& options, const AttentionNames& names);
  int64_t inner_;
  bool padding_queries_vote_;
  std::array<Projection, 3> qkv_;
  Linear output_;
};

/// i32 (n, n): query i may not see key j > i.
Tensor causal_mask(int64_t n);
/// i32 (B, n) from lengths: token j of row b is padding when j >= lengths[b].
Tensor padding_mask(std::span<const int64_t> lengths, int64_t n);

}  // namespace sinkgrad
