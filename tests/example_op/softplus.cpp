// softplus: log(1 + e^x), a smooth relu.
#include "ops/ops.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel softplus_forward;
BackwardKernel softplus_backward;
}  // namespace cpu

namespace {
const OpDef& softplus_op = register_op({
    .name = "softplus", .min_inputs = 1, .max_inputs = 1,
    .infer = [](std::span<const View> in, const Attrs&) { return Signature(in[0].shape); },
    .cpu = {cpu::softplus_forward, cpu::softplus_backward},
    .samples = [] { return std::vector<Sample>{{{{{3, 4}}}}, {{{{7}, -40, 40}}}, {{{{0, 2}}}, {}, true}}; },
    .reference = [](Tape&, std::span<const Var> in, const Attrs&) { return neg(log(sigmoid(neg(in[0])))); }});
}  // namespace

Var softplus(Var x) { return x.tape->apply(softplus_op, {x}); }

}  // namespace sinkgrad
