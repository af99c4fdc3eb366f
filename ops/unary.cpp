// Elementwise functions of one tensor. Where a function has a kink the derivative is the one from the left:
// relu'(0) = 0, leaky_relu'(0) = slope. log and sqrt give NaN or infinities outside their domain, as the C library does.
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel neg_forward, scale_shift_forward, exp_forward, log_forward, sqrt_forward, tanh_forward, sigmoid_forward, relu_forward,
    leaky_relu_forward, gelu_forward;
BackwardKernel neg_backward, scale_shift_backward, exp_backward, log_backward, sqrt_backward, tanh_backward, sigmoid_backward, relu_backward,
    leaky_relu_backward, gelu_backward;
}  // namespace cpu

namespace {

/// Shapes of every kind, elements in low .. high.
std::vector<Sample> samples(double low, double high, const Attrs& attrs = {}) {
  std::vector<Sample> all;
  for (const Shape& shape : std::vector<Shape>{{3, 5}, {}, {1}, {2, 3, 1, 7}, {1100}}) all.push_back({{{shape, low, high}}, attrs});
  all.push_back({{{{0, 4}}}, attrs, true});
  return all;
}

std::vector<Sample> any_samples() { return samples(-1.5, 1.5); }
std::vector<Sample> positive_samples() { return samples(0.3, 3); }
std::vector<Sample> wide_samples() {
  auto all = samples(-1.5, 1.5);
  all.push_back({{{{41}, -12, 12}}});
  return all;
}
std::vector<Sample> scale_shift_samples() {
  auto all = samples(-1e3, 1e3, {{"scale", -2.5}, {"shift", 0.75}});
  all.push_back({{{{3}}}, {{"scale", 0}, {"shift", 1}}, true});
  return all;
}
std::vector<Sample> relu_samples() {
  auto all = samples(0.1, 1.5);
  all.push_back({{{{5, 7}}}});
  all.push_back({{{{4}, -1.5, -0.1}}, {}, true});
  return all;
}
std::vector<Sample> leaky_relu_samples() {
  auto all = samples(-1.5, 1.5, {{"slope", 0.2}});
  all.push_back({{{{7}, -1.5, -0.1}}, {{"slope", -1}}});
  return all;
}

// -x = (-1) x + 0
Var neg_reference(Tape&, std::span<const Var> in, const Attrs&) { return scale_shift(in[0], -1, 0); }
// sqrt x = exp(log(x) / 2)
Var sqrt_reference(Tape&, std::span<const Var> in, const Attrs&) { return exp(scale_shift(log(in[0]), 0.5, 0)); }
// tanh x = 2 sigmoid(2 x) - 1
Var tanh_reference(Tape&, std::span<const Var> in, const Attrs&) { return scale_shift(sigmoid(scale_shift(in[0], 2, 0)), 2, -1); }
// sigmoid x = exp(-log(1 + exp(-x)))
Var sigmoid_reference(Tape&, std::span<const Var> in, const Attrs&) { return exp(neg(log(scale_shift(exp(neg(in[0])), 1, 1)))); }
Var relu_reference(Tape&, std::span<const Var> in, const Attrs&) { return leaky_relu(in[0], 0); }
// leaky_relu x = relu(x) - slope relu(-x)
Var leaky_relu_reference(Tape&, std::span<const Var> in, const Attrs& attrs) {
  return sub(relu(in[0]), scale_shift(relu(neg(in[0])), attrs.get("slope"), 0));
}

const OpDef& neg_op = register_op({.name = "neg",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .infer = same_shape<"neg">,
                                   .cpu = {cpu::neg_forward, cpu::neg_backward},
                                   .samples = any_samples,
                                   .reference = neg_reference});
const OpDef& scale_shift_op = register_op({.name = "scale_shift",
                                           .min_inputs = 1,
                                           .max_inputs = 1,
                                           .infer = same_shape<"scale_shift">,
                                           .cpu = {cpu::scale_shift_forward, cpu::scale_shift_backward},
                                           .samples = scale_shift_samples});
const OpDef& exp_op = register_op({.name = "exp",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .infer = same_shape<"exp">,
                                   .cpu = {cpu::exp_forward, cpu::exp_backward},
                                   .samples = wide_samples});
const OpDef& log_op = register_op({.name = "log",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .infer = same_shape<"log">,
                                   .cpu = {cpu::log_forward, cpu::log_backward},
                                   .samples = positive_samples});
const OpDef& sqrt_op = register_op({.name = "sqrt",
                                    .min_inputs = 1,
                                    .max_inputs = 1,
                                    .infer = same_shape<"sqrt">,
                                    .cpu = {cpu::sqrt_forward, cpu::sqrt_backward},
                                    .samples = positive_samples,
                                    .reference = sqrt_reference});
const OpDef& tanh_op = register_op({.name = "tanh",
                                    .min_inputs = 1,
                                    .max_inputs = 1,
                                    .infer = same_shape<"tanh">,
                                    .cpu = {cpu::tanh_forward, cpu::tanh_backward},
                                    .samples = wide_samples,
                                    .reference = tanh_reference});
const OpDef& sigmoid_op = register_op({.name = "sigmoid",
                                       .min_inputs = 1,
                                       .max_inputs = 1,
                                       .infer = same_shape<"sigmoid">,
                                       .cpu = {cpu::sigmoid_forward, cpu::sigmoid_backward},
                                       .samples = wide_samples,
                                       .reference = sigmoid_reference});
const OpDef& relu_op = register_op({.name = "relu",
                                    .min_inputs = 1,
                                    .max_inputs = 1,
                                    .infer = same_shape<"relu">,
                                    .cpu = {cpu::relu_forward, cpu::relu_backward},
                                    .samples = relu_samples,
                                    .reference = relu_reference});
const OpDef& leaky_relu_op = register_op({.name = "leaky_relu",
                                          .min_inputs = 1,
                                          .max_inputs = 1,
                                          .infer = same_shape<"leaky_relu">,
                                          .cpu = {cpu::leaky_relu_forward, cpu::leaky_relu_backward},
                                          .samples = leaky_relu_samples,
                                          .reference = leaky_relu_reference});
const OpDef& gelu_op = register_op({.name = "gelu",
                                    .min_inputs = 1,
                                    .max_inputs = 1,
                                    .infer = same_shape<"gelu">,
                                    .cpu = {cpu::gelu_forward, cpu::gelu_backward},
                                    .samples = wide_samples});

}  // namespace

Var neg(Var x) { return x.tape->apply(neg_op, {x}); }
Var scale_shift(Var x, double scale, double shift) { return x.tape->apply(scale_shift_op, {x}, {{"scale", scale}, {"shift", shift}}); }
Var exp(Var x) { return x.tape->apply(exp_op, {x}); }
Var log(Var x) { return x.tape->apply(log_op, {x}); }
Var sqrt(Var x) { return x.tape->apply(sqrt_op, {x}); }
Var tanh(Var x) { return x.tape->apply(tanh_op, {x}); }
Var sigmoid(Var x) { return x.tape->apply(sigmoid_op, {x}); }
Var relu(Var x) { return x.tape->apply(relu_op, {x}); }
Var leaky_relu(Var x, double slope) { return x.tape->apply(leaky_relu_op, {x}, {{"slope", slope}}); }
Var gelu(Var x) { return x.tape->apply(gelu_op, {x}); }

}  // namespace sinkgrad
