// The first value of a training step that is not finite, named so that one knows where to look: op, module, half-step of a Sinkhorn call, index,
// and what went in.
//
//   FiniteCheck check(model);
//   tape.set_observer(&check);       // the first op that makes a NaN or an infinity throws DivergedError
#pragma once
#include <string>

#include "nn/module.h"

namespace sinkgrad {

/// Looks at every output, every potential of a Sinkhorn call and every gradient as it is made. Reads each of them once more; docs/inspect.md
/// says what that costs.
class FiniteCheck : public Observer {
 public:
  /// The module whose parameters give the places their names; it must outlive the check.
  explicit FiniteCheck(Module& module) : module_(&module) {}
  void after_forward(const Tape& tape, const Record& record) override;
  void after_backward(const Tape& tape, const Record& record, std::span<const Grad> in_grad) override;

 private:
  Module* module_;
};

/// The same of a step that has run: a clause about the first parameter or output that is not finite; empty when all are.
std::string first_nonfinite_value(const Tape& tape, Module& module);
/// Likewise about the first gradient of a parameter.
std::string first_nonfinite_gradient(Module& module, Device device);

}  // namespace sinkgrad
