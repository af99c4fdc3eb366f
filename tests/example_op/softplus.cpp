// softplus: log(1 + e^x), a smooth relu.
#include "ops/ops.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel softplus_forward;
BackwardKernel softplus_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs&) { return in[0].shape; }

std::vector<Sample> samples() {
  const Sample plain{{{{3, 4}}}}, large{{{{7}, -40, 40}}}, empty{{{{0, 2}}}, {}, /*zero_gradient=*/true};
  return {plain, large, empty};
}

// softplus(x) = -log sigmoid(-x)
Var reference(Tape&, std::span<const Var> in, const Attrs&) { return neg(log(sigmoid(neg(in[0])))); }

const OpDef& softplus_op = register_op({.name = "softplus",
                                        .min_inputs = 1,
                                        .max_inputs = 1,
                                        .infer = infer,
                                        .cpu = {cpu::softplus_forward, cpu::softplus_backward},
                                        .samples = samples,
                                        .reference = reference});

}  // namespace

Var softplus(Var x) { return x.tape->apply(softplus_op, {x}); }

}  // namespace sinkgrad
