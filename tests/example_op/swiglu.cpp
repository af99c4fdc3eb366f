// swiglu(gate, x) = gate sigmoid(gate) x: the gated unit between the two layers of a transformer's perceptron.
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel swiglu_forward;
BackwardKernel swiglu_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs&) {
  require_float("swiglu", in[0]);
  require<ShapeError>(in[0].shape == in[1].shape, "swiglu: gate and x must have the same shape, got ", in[0].shape, " and ", in[1].shape);
  return in[0].shape;
}

std::vector<Sample> samples() {
  const Sample plain{{{{3, 4}}, {{3, 4}}}}, wide{{{{2, 5}, -20, 20}, {{2, 5}}}}, many{{{{700}}, {{700}}}};
  const Sample empty{{{{0, 2}}, {{0, 2}}}, {}, /*zero_gradient=*/true};
  return {plain, wide, many, empty};
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{2, 3}, {3, 2}}, {{4}, {}}}; }

Var reference(Tape&, std::span<const Var> in, const Attrs&) { return mul(mul(in[0], sigmoid(in[0])), in[1]); }

const OpDef& swiglu_op = register_op({.name = "swiglu",
                                      .min_inputs = 2,
                                      .max_inputs = 2,
                                      .infer = infer,
                                      .cpu = {cpu::swiglu_forward, cpu::swiglu_backward},
                                      .samples = samples,
                                      .bad_shapes = bad_shapes,
                                      .reference = reference});

}  // namespace

Var swiglu(Var gate, Var x) { return gate.tape->apply(swiglu_op, {gate, x}); }

}  // namespace sinkgrad
