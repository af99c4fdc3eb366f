// softmax and log_softmax along one axis, with an optional mask that excludes elements (weight 0, gradient exactly 0).
// A line without any unmasked element gives zeros (softmax) or -inf (log_softmax), never NaN.
#include "ops/broadcast.h"
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel softmax_forward, log_softmax_forward;
BackwardKernel softmax_backward, log_softmax_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs& attrs, const char* name) {
  require_float(name, in[0]);
  in[0].shape.axis(attrs.integer("axis"), name);
  if (in[1]) {
    require_broadcastable(name, "the mask", in[1].shape, in[0].shape);
    require<ShapeError>(in[1].dtype == DType::i32, name, ": the mask must be i32, got ", name_of(in[1].dtype), " of shape ", in[1].shape);
  }
  return in[0].shape;
}

Signature infer_softmax(std::span<const View> in, const Attrs& attrs) { return infer(in, attrs, "softmax"); }
Signature infer_log_softmax(std::span<const View> in, const Attrs& attrs) { return infer(in, attrs, "log_softmax"); }

std::vector<Sample> samples() {
  const auto none = SampleInput::none();
  return {{{{{3, 4}}, none}, {{"axis", -1}}},
          {{{{2, 3, 5}}, none}, {{"axis", 1}}},
          {{{{4, 2}}, none}, {{"axis", 0}}},
          {{{{2, 33}, -30, 30}, none}, {{"axis", -1}}},
          {{{{3, 1}}, none}, {{"axis", 1}}, true},
          {{{{0, 5}}, none}, {{"axis", 1}}, true},
          // Widths and axes that kernels treat each in its own way, and more rows than a block takes.
          {{{{2, 31}}, none}, {{"axis", -1}}},
          {{{{2, 65}}, none}, {{"axis", -1}}},
          {{{{1, 1025}}, none}, {{"axis", -1}}},
          {{{{1, 36, 3}}, none}, {{"axis", 1}}},
          {{{{270, 2}}, none}, {{"axis", 1}}}};
}

std::vector<Sample> softmax_samples() {
  auto all = samples();
  all.push_back({{{{2, 2, 4}}, SampleInput::mask({2, 1, 4}, {0, 0, 1, 0, 1, 1, 0, 0})}, {{"axis", -1}}});
  all.push_back({{{{2, 3}}, SampleInput::mask({2, 1}, {1, 0})}, {{"axis", -1}}});
  std::vector<double> every_third(2 * 40);
  for (size_t i = 0; i < every_third.size(); i += 3) every_third[i] = 1;
  all.push_back({{{{2, 40}}, SampleInput::mask({2, 40}, every_third)}, {{"axis", -1}}});
  all.push_back({{{{1, 40, 2}}, SampleInput::mask({40, 2}, every_third)}, {{"axis", 1}}});
  return all;
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{}}, {{2, 3}, {2, 4}}, {{3}, {2, 3}}}; }

// softmax = exp(log_softmax); log_softmax = x - logsumexp(x).
Var softmax_reference(Tape&, std::span<const Var> in, const Attrs& attrs) {
  return exp(log_softmax(in[0], static_cast<int>(attrs.get("axis")), in[1]));
}
Var log_softmax_reference(Tape&, std::span<const Var> in, const Attrs& attrs) {
  return sub(in[0], logsumexp(in[0], static_cast<int>(attrs.get("axis"))));
}

const OpDef& softmax_op = register_op({.name = "softmax",
                                       .min_inputs = 1,
                                       .max_inputs = 2,
                                       .infer = infer_softmax,
                                       .cpu = {cpu::softmax_forward, cpu::softmax_backward},
                                       .samples = softmax_samples,
                                       .bad_shapes = bad_shapes,
                                       .reference = softmax_reference});

const OpDef& log_softmax_op = register_op({.name = "log_softmax",
                                           .min_inputs = 1,
                                           .max_inputs = 2,
                                           .infer = infer_log_softmax,
                                           .cpu = {cpu::log_softmax_forward, cpu::log_softmax_backward},
                                           .samples = samples,
                                           .bad_shapes = bad_shapes,
                                           .reference = log_softmax_reference});

}  // namespace

Var softmax(Var x, int axis, Var is_masked) { return x.tape->apply(softmax_op, {x, is_masked}, {{"axis", static_cast<double>(axis)}}); }
Var log_softmax(Var x, int axis, Var is_masked) { return x.tape->apply(log_softmax_op, {x, is_masked}, {{"axis", static_cast<double>(axis)}}); }

}  // namespace sinkgrad
