// patchify: images (B, C, H, W) to the vectors of their p x p patches (B, H/p W/p, p p C), patches in row-major order.
// A vector holds (row in patch, column in patch, channel), the order of the paper's vision models.
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel patchify_forward;
BackwardKernel patchify_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs& attrs) {
  require_float("patchify", in[0]);
  const Shape& x = in[0].shape;
  const int64_t p = attrs.integer("patch");
  require<ShapeError>(x.rank() == 4, "patchify: needs images (B, C, H, W), got ", x);
  require<ShapeError>(p >= 1 && x[2] % p == 0 && x[3] % p == 0, "patchify: height and width must be multiples of the patch size ", p, ", got ", x);
  return Shape{x[0], x[2] / p * (x[3] / p), p * p * x[1]};
}

std::vector<Sample> samples() {
  auto sample = [](const Shape& shape, double patch) { return Sample{{{shape}}, {{"patch", patch}}, shape.count() == 0}; };
  return {sample({2, 3, 4, 6}, 2), sample({1, 1, 3, 3}, 3), sample({2, 2, 3, 1}, 1), sample({1, 2, 6, 3}, 3), sample({0, 3, 4, 4}, 2)};
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{3, 4, 4}}, {{1, 3, 5, 4}}, {{1, 3, 4, 5}}}; }

Var reference(Tape& tape, std::span<const Var> in, const Attrs& attrs) {
  const Shape s = in[0].shape();
  const int64_t p = attrs.integer("patch");
  Var x = tape.reshape(in[0], {s[0], s[1], s[2] / p, p, s[3] / p, p});  // (B, C, h, row, w, column)
  x = transpose(x, 1, 2);                                               // (B, h, C, row, w, column)
  x = transpose(x, 2, 4);                                               // (B, h, w, row, C, column)
  x = transpose(x, 4, 5);                                               // (B, h, w, row, column, C)
  return tape.reshape(x, {s[0], s[2] / p * (s[3] / p), p * p * s[1]});
}

const OpDef& patchify_op = register_op({.name = "patchify",
                                        .min_inputs = 1,
                                        .max_inputs = 1,
                                        .infer = infer,
                                        .cpu = {cpu::patchify_forward, cpu::patchify_backward},
                                        .samples = samples,
                                        .bad_shapes = bad_shapes,
                                        .reference = reference});

}  // namespace

Var patchify(Var images, int64_t patch) { return images.tape->apply(patchify_op, {images}, {{"patch", static_cast<double>(patch)}}); }

}  // namespace sinkgrad
