// The IMDb sentiment encoder (SPEC 2.3): post-norm encoder over token and position embeddings, maximum over all positions, Linear.
// Parameters carry the authors' names.
#pragma once
#include <vector>

#include "nn/transformer.h"

namespace sinkgrad {

struct TextEncoderOptions {
  int64_t vocabulary = 16000, max_length = 512, dim = 256, mlp_dim = 1024, classes = 2;
  int depth = 6, heads = 8;
  double dropout = 0.1, norm_epsilon = 1e-6;
  bool padding_queries_vote = false;  ///< the released code masks keys only; it also uses SinkhornGradient::frozen
  SinkhornOptions sinkhorn = {};
  DType dtype = DType::f32;  ///< of the position table
};

/// What the encoder reads, from token ids (B, N) in which `padding` fills the end of a row. Positions are 1..N for tokens and 0 for padding.
struct TextBatch {
  Tensor tokens, is_padding, positions;  ///< i32 (B, N)
};
TextBatch text_batch(const Tensor& tokens, int32_t padding = 0);

class TextEncoder : public Module {
 public:
  explicit TextEncoder(const TextEncoderOptions& options);
  /// (B, N) each -> (B, classes). The batch must outlive the step.
  Var logits(Tape& tape, const TextBatch& batch);
  std::vector<AttentionHeads*> attentions() { return encoder_.attentions(); }

  Tensor positions;  ///< (max_length + 1, dim), constant: sinusoids, row 0 belongs to padding

 private:
  Embedding embedding_;
  Encoder encoder_;
  Linear head_;
};

}  // namespace sinkgrad
