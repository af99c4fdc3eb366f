// Vision Transformer with a class token, in the form of the authors' experiments (SPEC 2.5 and 2.6), and its attention-only variant.
// Parameters carry the authors' names, so that their checkpoints load.
#pragma once
#include "nn/classifier.h"
#include "nn/transformer.h"

namespace sinkgrad {

struct VitOptions {
  int64_t channels = 3, height = 224, width = 224, classes = 2;
  int64_t patch = 16, dim = 128, mlp_dim = 128, head_dim = 64;
  int depth = 6, heads = 8;
  MlpUse mlp = MlpUse::used;  ///< none: attention only; unused: its parameters exist, as in the authors' code
  SinkhornOptions sinkhorn = {};
};

/// Images (B, C, H, W) -> patches and class token -> pre-norm encoder with GELU -> the class token's LayerNorm and Linear.
class Vit : public Classifier {
 public:
  /// InputError when the patches do not tile the image.
  explicit Vit(const VitOptions& options);
  Var logits(Var images) override;
  std::vector<AttentionHeads*> attentions() override { return encoder_.attentions(); }

 private:
  int64_t patch_;
  Linear embed_;
  Parameter &class_token_, &positions_;
  Encoder encoder_;
  LayerNorm head_norm_;
  Linear head_;
};

}  // namespace sinkgrad
