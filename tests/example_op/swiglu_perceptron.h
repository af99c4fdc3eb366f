// A transformer's perceptron with a gate: (..., dim) -> (..., dim), out(swiglu(gate(x), in(x))).
#pragma once
#include "nn/layers.h"

namespace sinkgrad {

class SwigluPerceptron : public Module {
 public:
  SwigluPerceptron(Module& parent, const std::string& name, int64_t dim, int64_t hidden)
      : Module(parent, name), gate_(*this, "gate", dim, hidden), in_(*this, "in", dim, hidden), out_(*this, "out", hidden, dim) {}
  Var operator()(Var x) const { return out_(swiglu(gate_(x), in_(x))); }

 private:
  Linear gate_, in_, out_;
};

}  // namespace sinkgrad
