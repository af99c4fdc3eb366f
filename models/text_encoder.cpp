// Padding keeps its rows and takes part in the maximum, as in the authors' code; only attention is masked.
#include "models/text_encoder.h"

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

}  // namespace

TextBatch text_batch(const Tensor& tokens, int32_t padding) {
  require<ShapeError>(tokens.shape().rank() == 2 && tokens.dtype() == DType::i32, "text_batch: tokens must be i32 (B, N), got ",
                      name_of(tokens.dtype()), " ", tokens.shape());
  TextBatch batch{tokens, Tensor(tokens.shape(), DType::i32), Tensor(tokens.shape(), DType::i32)};
  const int64_t n = tokens.shape()[1];
  for (int64_t i = 0; i < tokens.count(); ++i) {
    const auto k = static_cast<size_t>(i);
    const bool is_padding = tokens.span<int32_t>()[k] == padding;
    batch.is_padding.span<int32_t>()[k] = is_padding;
    batch.positions.span<int32_t>()[k] = is_padding ? 0 : static_cast<int32_t>(i % n + 1);
  }
  return batch;
}

TextEncoder::TextEncoder(const TextEncoderOptions& o)
    : positions(sinusoid_interleaved(o.max_length + 1, o.dim, o.dtype)),
      embedding_(*this, "embedding", o.vocabulary, o.dim),
      encoder_(*this, "", o.depth, encoder_options(o)),
      head_(*this, "linear", o.dim, o.classes) {}

Var TextEncoder::logits(Tape& tape, const TextBatch& batch) {
  const Var is_padding = tape.leaf(batch.is_padding);
  const Var x = add(embedding_(tape.leaf(batch.tokens)), embedding(tape.leaf(batch.positions), tape.leaf(positions)));  // (B, N, dim)
  const Var encoded = encoder_(x, {.key_is_padding = is_padding, .query_is_padding = is_padding});
  return head_(max(encoded, {1}));
}

}  // namespace sinkgrad
