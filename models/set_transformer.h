// Set Transformer / Set Sinkformer of the ModelNet40 experiment (SPEC 2.1): ISAB, ISAB, Dropout, PMA, Dropout, Linear.
#pragma once
#include "nn/classifier.h"
#include "nn/set.h"

namespace sinkgrad {

struct SetTransformerOptions {
  int64_t input_dim = 3, classes = 40, inducing = 16;
  double dropout = 0.5;
  SetOptions blocks = {};
};

/// Points (B, N, input_dim) -> (B, classes), the same for every order of the points.
class SetTransformer : public Classifier {
 public:
  explicit SetTransformer(const SetTransformerOptions& options);
  Var logits(Var points) override;
  std::vector<AttentionHeads*> attentions() override;

 private:
  Isab encoder0_, encoder1_;
  Dropout dropout0_;
  Pma pool_;
  Dropout dropout2_;
  Linear head_;
};

}  // namespace sinkgrad
