// matmul: batched products with transpose flags. linear: y = x W^T + bias, with torch's weight layout.
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel matmul_forward, linear_forward;
BackwardKernel matmul_backward, linear_backward;
}  // namespace cpu

namespace {

Signature infer_matmul(std::span<const View> in, const Attrs& attrs) {
  const Shape &a = in[0].shape, &b = in[1].shape;
  for (const View& v : in) require_float("matmul", v);
  require<ShapeError>(a.rank() >= 2 && b.rank() >= 2, "matmul: needs matrices, got ", a, " and ", b);
  const bool ta = attrs.flag("transpose_a"), tb = attrs.flag("transpose_b");
  const int64_t inner_a = a[ta ? -2 : -1], inner_b = b[tb ? -1 : -2];
  require<ShapeError>(inner_a == inner_b, "matmul: inner dimensions must be equal (", inner_a, " against ", inner_b, "), got ", a, ta ? "^T" : "",
                      " and ", b, tb ? "^T" : "");
  bool same_batch = b.rank() == 2 || a.rank() == b.rank();
  for (int i = 0; same_batch && b.rank() > 2 && i < a.rank() - 2; ++i) same_batch = a[i] == b[i];
  require<ShapeError>(same_batch, "matmul: batch dimensions must be equal or the second operand 2-D, got ", a, " and ", b);
  Shape out = a;
  out.set(-2, a[ta ? -1 : -2]);
  out.set(-1, b[tb ? -2 : -1]);
  return out;
}

Signature infer_linear(std::span<const View> in, const Attrs&) {
  const Shape &x = in[0].shape, &w = in[1].shape;
  for (const View& v : in) require_float("linear", v);
  require<ShapeError>(x.rank() >= 1 && w.rank() == 2 && x[-1] == w[1] && (!in[2] || in[2].shape == Shape{w[0]}),
                      "linear: takes x (..., K), weight (M, K) and bias (M), got ", ShapesOf{in});
  Shape out = x;
  out.set(-1, w[0]);
  return out;
}

std::vector<Sample> matmul_samples() {
  auto flags = [](int a, int b) { return Attrs{{"transpose_a", double(a)}, {"transpose_b", double(b)}}; };
  return {{{{{2, 3, 4}}, {{2, 4, 5}}}, flags(0, 0)}, {{{{2, 4, 3}}, {{2, 4, 5}}}, flags(1, 0)},
          {{{{2, 3, 4}}, {{2, 5, 4}}}, flags(0, 1)}, {{{{2, 4, 3}}, {{2, 5, 4}}}, flags(1, 1)},
          {{{{2, 3, 4}}, {{4, 5}}}, flags(0, 0)},    {{{{2, 4, 3}}, {{5, 4}}}, flags(1, 1)},
          {{{{3, 3}}, {{3, 3}}}, flags(0, 0)},       {{{{3, 3}}, {{3, 3}}}, flags(1, 0)},
          {{{{1, 1}}, {{1, 3}}}, flags(0, 0)},       {{{{2, 2, 1, 3}}, {{2, 2, 3, 1}}}, flags(0, 0)},
          {{{{5, 0}}, {{0, 3}}}, flags(0, 0), true}, {{{{0, 3}}, {{3, 4}}}, flags(0, 0), true}};
}

std::vector<Sample> linear_samples() {
  const auto none = SampleInput::none();
  return {{{{{5, 4}}, {{3, 4}}, {{3}}}},
          {{{{2, 3, 4}}, {{5, 4}}, none}},
          {{{{4}}, {{2, 4}}, {{2}}}},
          {{{{1, 1}}, {{1, 1}}, {{1}}}},
          {{{{70, 3}}, {{70, 3}}, {{70}}}}};
}

Var matmul_reference(Tape&, std::span<const Var> in, const Attrs& attrs) {
  // sum over the inner index of an outer product, by broadcasting
  Var a = attrs.flag("transpose_a") ? transpose(in[0], -1, -2) : in[0], b = attrs.flag("transpose_b") ? transpose(in[1], -1, -2) : in[1];
  Shape wide = a.shape(), tall;
  wide.push_back(1);  // (..., N, K, 1)
  for (int i = 0; i < b.shape().rank(); ++i) {
    if (i == b.shape().rank() - 2) tall.push_back(1);
    tall.push_back(b.shape()[i]);  // (..., 1, K, M)
  }
  return sum(mul(a.tape->reshape(a, wide), b.tape->reshape(b, tall)), {-2});
}

Var linear_reference(Tape&, std::span<const Var> in, const Attrs&) {
  Var x = in[0];
  if (x.shape().rank() == 1) x = x.tape->reshape(x, {1, x.shape()[0]});
  Var y = matmul(x, in[1], false, true);
  if (in[2]) y = add(y, in[2]);
  return in[0].shape().rank() == 1 ? y.tape->reshape(y, {y.shape()[-1]}) : y;
}

const OpDef& matmul_op = register_op({.name = "matmul",
                                      .min_inputs = 2,
                                      .max_inputs = 2,
                                      .infer = infer_matmul,
                                      .cpu = {cpu::matmul_forward, cpu::matmul_backward},
                                      .samples = matmul_samples,
                                      .bad_shapes =
                                          [] {
                                            return std::vector<std::vector<Shape>>{{{2, 3, 4}, {2, 5, 4}}, {{3}, {3, 4}}, {{2, 3, 4}, {3, 4, 5}}};
                                          },
                                      .reference = matmul_reference});

const OpDef& linear_op = register_op({.name = "linear",
                                      .min_inputs = 2,
                                      .max_inputs = 3,
                                      .infer = infer_linear,
                                      .cpu = {cpu::linear_forward, cpu::linear_backward},
                                      .samples = linear_samples,
                                      .bad_shapes =
                                          [] {
                                            return std::vector<std::vector<Shape>>{{{5, 4}, {4, 3}}, {{5, 4}, {3, 4}, {4}}, {{4}, {4}}};
                                          },
                                      .reference = linear_reference});

}  // namespace

Var matmul(Var a, Var b, bool transpose_a, bool transpose_b) {
  return a.tape->apply(matmul_op, {a, b}, {{"transpose_a", transpose_a ? 1.0 : 0.0}, {"transpose_b", transpose_b ? 1.0 : 0.0}});
}
Var linear(Var x, Var weight, Var bias) { return x.tape->apply(linear_op, {x, weight, bias}); }

}  // namespace sinkgrad
