// What the trainer and the tools know of a model: inputs in, one score per class out, and attention steps to look into.
#pragma once
#include <vector>

#include "nn/attention.h"

namespace sinkgrad {

class Model : public Module {
 public:
  /// Inputs and context of a batch (datasets/dataset.h; a null Var where there is no context) -> (rows, classes), one row for each label.
  /// Dropout and batch statistics follow tape.training().
  virtual Var scores(Var inputs, Var context) = 0;
  /// Its attention steps, first layer first; of a translator the encoder's, which alone may be Sinkhorn.
  virtual std::vector<AttentionHeads*> attentions() = 0;
};

/// One label per item.
class Classifier : public Model {
 public:
  /// (B, item...) -> (B, classes).
  virtual Var logits(Var inputs) = 0;
  Var scores(Var inputs, Var) final { return logits(inputs); }
};

}  // namespace sinkgrad
