// Projections around the fused attention, and the two masks that people ask for.
#include "nn/attention.h"

#include <cmath>

namespace sinkgrad {
namespace {

int64_t inner_width(const AttentionOptions& o) {
  require(o.heads > 0 && o.dim > 0, "attention: width and heads must be positive, got ", o.dim, " and ", o.heads);
  require(o.head_dim > 0 || o.dim % o.heads == 0, "attention: ", o.heads, " heads do not divide width ", o.dim, "; give the width of a head");
  return o.head_dim > 0 ? o.heads * o.head_dim : o.dim;
}

double score_scale(const AttentionOptions& o) {
  return 1 / std::sqrt(static_cast<double>(o.scale_by_model_width ? o.dim : inner_width(o) / o.heads));
}

/// fairseq: xavier with gain 1/sqrt(2) for q, k, v, gain 1 for the output, whose bias is 0. torch: plain Linear layers.
LinearOptions output_init(const AttentionOptions& o) {
  LinearOptions linear{.bias = o.output_bias};
  if (o.init == InitScheme::fairseq) {
    linear.weight_init = Init::xavier_uniform(inner_width(o), o.dim);
    linear.bias_init = Init::constant(0);
  }
  return linear;
}

}  // namespace

MultiHeadAttention::MultiHeadAttention(Module& parent, const std::string& name, const AttentionOptions& options, const AttentionNames& names)
    : Module(parent, name),
      heads{.count = options.heads, .scale = score_scale(options), .sinkhorn = options.sinkhorn},
      inner_(inner_width(options)),
      padding_queries_vote_(options.padding_queries_vote),
      qkv_(projections(options, names)),
      output_(*this, names.output, inner_, options.dim, output_init(options)) {}

std::array<MultiHeadAttention::Projection, 3> MultiHeadAttention::projections(const AttentionOptions& options, const AttentionNames& names) {
  const Init weight =
      options.init == InitScheme::fairseq ? Init::xavier_uniform(options.dim, inner_, std::sqrt(0.5)) : Init::torch_linear(options.dim);
  const auto make = [&](const std::string& weight_name, const std::string& bias_name, int64_t rows) {
    Parameter& w = parameter(weight_name, {rows, options.dim}, weight);
    return Projection{&w, options.qkv_bias ? &parameter(bias_name, {rows}, Init::torch_linear(options.dim), false) : nullptr, 0, rows};
  };
  if (names.packed_weight.empty())
    return {make(names.query + ".weight", names.query + ".bias", inner_), make(names.key + ".weight", names.key + ".bias", inner_),
            make(names.value + ".weight", names.value + ".bias", inner_)};
  const Projection packed = make(names.packed_weight, names.packed_bias, 3 * inner_);
  const auto part = [&](int64_t i) { return Projection{packed.weight, packed.bias, i * inner_, (i + 1) * inner_}; };
  return {part(0), part(1), part(2)};
}

Var MultiHeadAttention::Projection::operator()(Var x) const {
  return linear(x, weight->rows(*x.tape, begin, end), bias ? bias->rows(*x.tape, begin, end) : Var{});
}

Var first_tokens(Var x, int64_t wanted) { return wanted == kAllTokens || wanted == x.shape()[1] ? x : slice(x, 1, 0, wanted); }

Var MultiHeadAttention::operator()(Var queries, const KeyValues& memory, const AttentionMasks& masks, int64_t wanted) {
  AttentionMasks used = masks;
  if (padding_queries_vote_) used.query_is_padding = {};
  return output_(first_tokens(heads(qkv_[0](queries), memory.keys, memory.values, used), wanted));
}

Tensor causal_mask(int64_t n) {
  Tensor mask({n, n}, DType::i32);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i + 1; j < n; ++j) mask.span<int32_t>()[static_cast<size_t>(i * n + j)] = 1;
  return mask;
}

Tensor padding_mask(std::span<const int64_t> lengths, int64_t n) {
  Tensor mask({static_cast<int64_t>(lengths.size()), n}, DType::i32);
  for (size_t b = 0; b < lengths.size(); ++b) {
    require(lengths[b] >= 0 && lengths[b] <= n, "padding_mask: lengths must lie in 0..", n, ", got ", lengths[b]);
    std::fill(mask.span<int32_t>().begin() + static_cast<int64_t>(b) * n + lengths[b], mask.span<int32_t>().begin() + static_cast<int64_t>(b + 1) * n,
              1);
  }
  return mask;
}

}  // namespace sinkgrad
