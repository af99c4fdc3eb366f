// What the trainer and the tools know of a model: inputs in, one score per class out, and attention steps to look into.
#pragma once
#include <vector>

#include "nn/attention.h"

namespace sinkgrad {

class Classifier : public Module {
 public:
  /// (B, item...) -> (B, classes). Dropout and batch statistics follow tape.training().
  virtual Var logits(Var inputs) = 0;
  /// Its attention steps, first layer first.
  virtual std::vector<AttentionHeads*> attentions() = 0;
};

}  // namespace sinkgrad
