// The IMDb sentiment encoder (SPEC 2.3): post-norm encoder over token and position embeddings, maximum over the text, Linear.
// Parameters carry the authors' names. The options below that are off by default reproduce the authors' released code.
#pragma once
#include <vector>

#include "nn/classifier.h"
#include "nn/transformer.h"

namespace sinkgrad {

struct TextEncoderOptions {
  int64_t vocabulary = 16000, max_length = 512, dim = 256, mlp_dim = 1024, classes = 2;
  int depth = 6, heads = 8;
  double dropout = 0.1, norm_epsilon = 1e-6;
  bool random_positions = false;      ///< frozen standard normal noise instead of sinusoids
  bool padding_queries_vote = false;  ///< attention masks keys only: the amount of padding then changes real tokens
  bool pool_padding = false;          ///< padding takes part in the maximum
  bool double_softmax = false;        ///< the scores are probabilities, of which the loss takes a softmax again
  SinkhornOptions sinkhorn = {};      ///< the released code has SinkhornGradient::frozen
  DType dtype = DType::f32;           ///< of the position table
};

class TextEncoder : public Classifier {
 public:
  explicit TextEncoder(const TextEncoderOptions& options);
  /// Token planes i32 (3, B, N) with positions 1..N and 0 for padding -> (B, classes).
  Var logits(Var planes) override;
  std::vector<AttentionHeads*> attentions() override { return encoder_.attentions(); }

  Tensor positions;  ///< (max_length + 1, dim), constant; row 0 belongs to padding

 private:
  bool pool_padding_, double_softmax_;
  Embedding embedding_;
  Encoder encoder_;
  Linear head_;
};

}  // namespace sinkgrad
