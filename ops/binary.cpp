// add, sub, mul, div with numpy's broadcasting; the gradient of a broadcast operand has the operand's own shape.
#include "ops/broadcast.h"
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel add_forward, sub_forward, mul_forward, div_forward;
BackwardKernel add_backward, sub_backward, mul_backward, div_backward;
}  // namespace cpu

namespace {

template <OpName op>
Signature infer(std::span<const View> in, const Attrs&) {
  require_float(op.text, in[0]);
  require_float(op.text, in[1]);
  return broadcast_shape(op.text, in[0].shape, in[1].shape);
}

/// Pairs of shapes; the second operand is drawn from low .. high.
std::vector<Sample> samples(double low, double high) {
  const std::vector<std::array<Shape, 2>> pairs = {{{{3, 5}, {3, 5}}},       {{{}, {}}},
                                                   {{{1}, {5, 4}}},          {{{4, 1}, {1, 4}}},
                                                   {{{}, {2, 3}}},           {{{2, 3}, {}}},
                                                   {{{2, 3, 7}, {7}}},       {{{7}, {2, 3, 7}}},
                                                   {{{5, 2, 1}, {5, 1, 2}}}, {{{2, 1, 3, 1}, {5, 1, 2}}},
                                                   {{{3, 1}, {1, 3}}},       {{{2, 67}, {1, 67}}},
                                                   {{{1, 1, 5}, {2, 3, 1}}}, {{{4, 1, 3}, {4, 2, 3}}},
                                                   {{{2, 2, 3}, {2, 3}}},    {{{1, 2, 1, 2, 1, 2}, {2, 1, 2, 1, 2, 1}}},
                                                   {{{3, 8}, {8}}},          {{{3, 1}, {3, 8}}},
                                                   {{{20, 33}, {33}}},       {{{65, 2, 1}, {2, 3}}}};
  std::vector<Sample> all;
  for (const auto& [a, b] : pairs) all.push_back({{{a}, {b, low, high}}});
  all.push_back({{{{0, 3}}, {{3}, low, high}}, {}, true});
  all.push_back({{{{2, 1}}, {{2, 0}, low, high}}, {}, true});
  all.push_back({{{{0}}, {{}, low, high}}, {}, true});
  all.push_back({{{{3, 2}, -1e3, 1e3}, {{2}, low, high}}});
  // Long enough that a GPU splits the sum among blocks.
  all.push_back({{{.shape = {260, 17}, .differentiable = false}, {{17}, low, high}}});
  return all;
}

std::vector<Sample> any_samples() { return samples(-1.5, 1.5); }

std::vector<Sample> div_samples() {
  auto all = samples(0.5, 2);
  all.push_back({{{{3, 2}}, {{2}, -3, -0.5}}});
  return all;
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{3, 2}, {3}}, {{5, 2, 1}, {5, 2}}, {{0}, {2}}}; }

// a + b = a - (-b), and back.
Var add_reference(Tape&, std::span<const Var> in, const Attrs&) { return sub(in[0], neg(in[1])); }
Var sub_reference(Tape&, std::span<const Var> in, const Attrs&) { return add(in[0], neg(in[1])); }

const OpDef& add_op = register_op({.name = "add",
                                   .min_inputs = 2,
                                   .max_inputs = 2,
                                   .infer = infer<"add">,
                                   .cpu = {cpu::add_forward, cpu::add_backward},
                                   .samples = any_samples,
                                   .bad_shapes = bad_shapes,
                                   .reference = add_reference});
const OpDef& sub_op = register_op({.name = "sub",
                                   .min_inputs = 2,
                                   .max_inputs = 2,
                                   .infer = infer<"sub">,
                                   .cpu = {cpu::sub_forward, cpu::sub_backward},
                                   .samples = any_samples,
                                   .bad_shapes = bad_shapes,
                                   .reference = sub_reference});
const OpDef& mul_op = register_op({.name = "mul",
                                   .min_inputs = 2,
                                   .max_inputs = 2,
                                   .infer = infer<"mul">,
                                   .cpu = {cpu::mul_forward, cpu::mul_backward},
                                   .samples = any_samples,
                                   .bad_shapes = bad_shapes});
const OpDef& div_op = register_op({.name = "div",
                                   .min_inputs = 2,
                                   .max_inputs = 2,
                                   .infer = infer<"div">,
                                   .cpu = {cpu::div_forward, cpu::div_backward},
                                   .samples = div_samples,
                                   .bad_shapes = bad_shapes});

}  // namespace

Var add(Var a, Var b) { return a.tape->apply(add_op, {a, b}); }
Var sub(Var a, Var b) { return a.tape->apply(sub_op, {a, b}); }
Var mul(Var a, Var b) { return a.tape->apply(mul_op, {a, b}); }
Var div(Var a, Var b) { return a.tape->apply(div_op, {a, b}); }

}  // namespace sinkgrad
