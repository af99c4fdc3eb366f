// SGD, Adam and AdamW over the flat buffers of a ParameterPack: every update is one pass over memory.
// `form` decides where epsilon joins in Adam; torch and fairseq differ, most in the first thousand updates.
#pragma once
#include <string>
#include <vector>

#include "nn/module.h"
#include "ops/update.h"

namespace sinkgrad {

struct OptimizerOptions {
  enum class Kind : uint8_t { sgd, adam, adamw };
  enum class Form : uint8_t { torch, fairseq };
  Kind kind = Kind::adam;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum = 0;      ///< sgd only
  double weight_decay = 0;  ///< adamw: x shrinks by lr weight_decay; sgd and adam: weight_decay x joins the gradient
  Form form = Form::torch;  ///< epsilon joins sqrt(v) after (torch) or before (fairseq) the bias correction
  bool decay_all = false;   ///< also decay the parameters made with decay = false: biases and norm gains
};

/// With g the gradient (for coupled decay g + wd x), t = 1, 2, ... the number of the update:
///   sgd:     m = momentum m + g;  x -= lr m
///   adam(w): m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  c1 = 1 - b1^t;  c2 = 1 - b2^t
///            torch:   x -= lr / c1 * m / (sqrt(v / c2) + eps)
///            fairseq: x -= lr sqrt(c2) / c1 * m / (sqrt(v) + eps)
/// Results do not depend on the number of threads.
class Optimizer {
 public:
  /// One buffer of the optimizer, in the layout of the pack.
  struct State {
    std::string name;  ///< "m" or "v"
    Tensor values;
  };

  /// The pack must outlive the optimizer. Throws Error naming the option that is out of range.
  Optimizer(const ParameterPack& pack, const OptimizerOptions& options);
  /// One update with learning rate `lr` from the pack's gradients times `gradient_scale` (see clip_scale; not a number leaves all as it is).
  void step(double lr, double gradient_scale = 1);

  // The same in two halves, for a step that is recorded (core/replay.h); set_updates() then counts it.
  /// Fills in what the next update needs.
  void prepare(StepState& next, double lr) const;
  /// Makes the update that a StepState in the memory of the pack's device describes, without waiting for it.
  void run(const StepState* on_device) const;

  /// Updates done so far; with state() all that a checkpoint needs.
  int64_t updates() const { return updates_; }
  void set_updates(int64_t updates) { updates_ = updates; }
  std::vector<State> state() const;
  /// Names of the parameters to which weight decay applies.
  std::vector<std::string> decayed() const;

 private:
  const ParameterPack* pack_;
  OptimizerOptions options_;
  Tensor m_, v_;   ///< empty where the rule does without
  Tensor chunks_;  ///< see ValueUpdate
  Resident<StepState> state_;
  int64_t updates_ = 0;
};

/// The 2-norm of all gradients together; not finite when one of them is not. The same bits for any number of threads. Waits for the device.
double gradient_norm(const ParameterPack& pack);

}  // namespace sinkgrad
