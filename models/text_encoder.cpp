// Rows of padding are computed like all others; masks keep them out of attention and maximum.
#include "models/text_encoder.h"

#include "nn/token_inputs.h"

namespace sinkgrad {
namespace {

TransformerOptions encoder_options(const TextEncoderOptions& o) {
  return {
      .attention = {.dim = o.dim, .heads = o.heads, .padding_queries_vote = o.padding_queries_vote, .sinkhorn = o.sinkhorn},
      .mlp_dim = o.mlp_dim,
      .dropout = o.dropout,
      .norm_epsilon = o.norm_epsilon,
      .names = {.attention = "mha",
                .attention_norm = "layernorm1",
                .mlp_in = "ffn.linear1",
                .mlp_out = "ffn.linear2",
                .mlp_norm = "layernorm2",
                .projections = {.query = "WQ", .key = "WK", .value = "WV", .output = "linear"}},
  };
}

Tensor position_table(const TextEncoderOptions& o) {
  Tensor table = sinusoid_interleaved(o.max_length + 1, o.dim, o.dtype);
  if (!o.random_positions) return table;
  RandomStream random(0, "positions");  // the same noise for every seed: it is no parameter
  dispatch(o.dtype, [&]<class T>() {
    for (T& x : table.span<T>()) x = static_cast<T>(random.normal());
  });
  return table;
}

}  // namespace

TextEncoder::TextEncoder(const TextEncoderOptions& o)
    : positions(position_table(o)),
      pool_padding_(o.pool_padding),
      double_softmax_(o.double_softmax),
      embedding_(*this, "embedding", o.vocabulary, o.dim),
      encoder_(*this, "", o.depth, encoder_options(o)),
      head_(*this, "linear", o.dim, o.classes) {}

Var TextEncoder::logits(Var planes) {
  const TokenInputs in(planes);
  const Var x = add(embedding_(in.tokens), embedding(in.positions, planes.tape->leaf(positions)));  // (B, N, dim)
  const Var encoded = encoder_(x, {.key_is_padding = in.is_padding, .query_is_padding = in.is_padding});
  const Var scores = head_(max_pool_set(encoded, pool_padding_ ? Var{} : in.is_padding));
  return double_softmax_ ? softmax(scores) : scores;
}

}  // namespace sinkgrad
