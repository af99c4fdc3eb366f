// logsumexp along one axis, which is kept with length 1. Elements of -inf count as absent: a line of nothing else, or of
// length 0, gives -inf with gradient 0. A line with +inf gives +inf, and its +inf elements share the gradient equally.
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel logsumexp_forward;
BackwardKernel logsumexp_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs& attrs) {
  require_float("logsumexp", in[0]);
  Shape out = in[0].shape;
  out.set(out.axis(attrs.integer("axis"), "logsumexp"), 1);
  return out;
}

std::vector<Sample> samples() {
  return {{{{{3, 4}}}, {{"axis", -1}}},
          {{{{2, 3, 5}}}, {{"axis", 1}}},
          {{{{4, 2}}}, {{"axis", 0}}},
          {{{{2, 33}, -30, 30}}, {{"axis", -1}}},
          {{{{3, 1}}}, {{"axis", 1}}},
          {{{{7}}}, {{"axis", 0}}},
          {{{{0, 5}}}, {{"axis", 1}}, true},
          {{{{2, 0}}}, {{"axis", 1}}, true},
          // Widths and axes that kernels treat each in its own way, and more rows than a block takes.
          {{{{2, 31}}}, {{"axis", 1}}},
          {{{{2, 65}}}, {{"axis", 1}}},
          {{{{1, 1025}}}, {{"axis", 1}}},
          {{{{1, 36, 3}}}, {{"axis", 1}}},
          {{{{270, 2}}}, {{"axis", 1}}}};
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{}}}; }

Var reference(Tape&, std::span<const Var> in, const Attrs& attrs) { return log(sum(exp(in[0]), {static_cast<int>(attrs.get("axis"))}, true)); }

const OpDef& logsumexp_op = register_op({.name = "logsumexp",
                                         .min_inputs = 1,
                                         .max_inputs = 1,
                                         .infer = infer,
                                         .cpu = {cpu::logsumexp_forward, cpu::logsumexp_backward},
                                         .samples = samples,
                                         .bad_shapes = bad_shapes,
                                         .reference = reference});

}  // namespace

Var logsumexp(Var x, int axis) { return x.tape->apply(logsumexp_op, {x}, {{"axis", static_cast<double>(axis)}}); }

}  // namespace sinkgrad
