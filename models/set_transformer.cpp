// Names follow the authors' two torch Sequentials, enc and dec, whose dropouts hold places 0 and 2 of the decoder.
#include "models/set_transformer.h"

namespace sinkgrad {

SetTransformer::SetTransformer(const SetTransformerOptions& o)
    : encoder0_(*this, "enc.0", o.input_dim, o.inducing, o.blocks),
      encoder1_(*this, "enc.1", o.blocks.dim, o.inducing, o.blocks),
      dropout0_(*this, "dec.0", o.dropout),
      pool_(*this, "dec.1", 1, o.blocks),
      dropout2_(*this, "dec.2", o.dropout),
      head_(*this, "dec.3", o.blocks.dim, o.classes) {}

Var SetTransformer::logits(Var points) {
  const Var encoded = encoder1_(encoder0_(points));         // (B, N, dim)
  const Var pooled = dropout2_(pool_(dropout0_(encoded)));  // (B, 1, dim)
  const Var scores = head_(pooled);
  return points.tape->reshape(scores, {scores.shape()[0], scores.shape()[2]});
}

std::vector<AttentionHeads*> SetTransformer::attentions() {
  return {&encoder0_.mab0.heads, &encoder0_.mab1.heads, &encoder1_.mab0.heads, &encoder1_.mab1.heads, &pool_.mab.heads};
}

}  // namespace sinkgrad
