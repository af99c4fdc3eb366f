// sum, mean and max over any axes. The gradient of max goes to the first maximal element in row-major order.
// The sum of no elements is 0; mean and max of no elements are refused.
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel sum_forward, mean_forward, max_forward;
BackwardKernel sum_backward, mean_backward, max_backward;
}  // namespace cpu

namespace {

template <OpName op>
Signature infer(std::span<const View> in, const Attrs& attrs) {
  require_float(op.text, in[0]);
  const Shape& shape = in[0].shape;
  for (int i = shape.rank(); i < Shape::kMaxRank; ++i)
    require<ShapeError>(attrs.integer("axes") == 0 || !is_reduced(attrs, i), op.text, ": axis ", i, " is out of range, got ", shape);
  if (attrs.flag("keep")) return reduced_shape(shape, attrs);
  Shape out;
  for (int i = 0; i < shape.rank(); ++i)
    if (!is_reduced(attrs, i)) out.push_back(shape[i]);
  return out;
}

template <OpName op>
Signature infer_nonempty(std::span<const View> in, const Attrs& attrs) {
  const Signature signature = infer<op>(in, attrs);
  require<ShapeError>(reduced_count(in[0].shape, attrs) > 0, op.text, ": needs at least one element along the reduced axes, got ", in[0].shape);
  return signature;
}

/// The attributes: the axes as bits, no bit for all.
Attrs attributes(const char* op, const Shape& shape, std::initializer_list<int> axes, bool keep) {
  int bits = 0;
  for (int axis : axes) {
    const int bit = 1 << shape.axis(axis, op);
    require<ShapeError>(!(bits & bit), op, ": axis ", axis, " is given twice, got ", shape);
    bits |= bit;
  }
  return {{"axes", static_cast<double>(bits)}, {"keep", static_cast<double>(keep)}};
}

std::vector<Sample> nonempty_samples() {
  auto sample = [](const Shape& shape, int axes, bool keep, double size = 1.5) {
    return Sample{{{shape, -size, size}}, {{"axes", static_cast<double>(axes)}, {"keep", static_cast<double>(keep)}}};
  };
  std::vector<Sample> all = {sample({3, 4}, 0b10, false),    sample({3, 4}, 0b01, false),
                             sample({3, 4}, 0, true),        sample({}, 0, false),
                             sample({5, 1}, 0b10, true),     sample({1, 5}, 0b10, false),
                             sample({2, 70}, 0b01, true),    sample({2, 3, 5}, 0b010, true),
                             sample({2, 3, 5}, 0b101, true), sample({2, 1, 3, 1, 2, 2}, 0b101010, false),
                             sample({7}, 1, false, 1e6),     sample({1100}, 0, false),
                             sample({20, 33}, 0b01, false),  sample({3, 65}, 0b10, true),
                             sample({2, 9, 31}, 0b10, true), sample({3, 2, 33}, 0b101, false)};
  all.push_back({{{{3, 0}}}, {{"axes", 0b01}}, true});
  // So long that a GPU splits them among blocks, and too long for differences.
  for (Sample s : {sample({8300}, 0, false), sample({2, 8200}, 0b10, false), sample({2100, 3}, 0b01, false)}) {
    s.inputs[0].differentiable = false;
    s.zero_gradient = true;
    all.push_back(s);
  }
  return all;
}

std::vector<Sample> sum_samples() {
  auto all = nonempty_samples();
  all.push_back({{{{3, 0}}}, {{"axes", 0b10}}, true});
  all.push_back({{{{0}}}, {{"axes", 0}}, true});
  return all;
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{}}, {{4}}}; }
std::vector<std::vector<Shape>> nonempty_bad_shapes() { return {{{}}, {{4}}, {{3, 0}}}; }

Var mean_reference(Tape& tape, std::span<const Var> in, const Attrs& attrs) {
  const Var total = tape.apply(find_op("sum"), in, attrs);
  return scale_shift(total, 1 / static_cast<double>(reduced_count(in[0].shape(), attrs)), 0);
}

const OpDef& sum_op = register_op({.name = "sum",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .infer = infer<"sum">,
                                   .cpu = {cpu::sum_forward, cpu::sum_backward},
                                   .samples = sum_samples,
                                   .bad_shapes = bad_shapes});
const OpDef& mean_op = register_op({.name = "mean",
                                    .min_inputs = 1,
                                    .max_inputs = 1,
                                    .infer = infer_nonempty<"mean">,
                                    .cpu = {cpu::mean_forward, cpu::mean_backward},
                                    .samples = nonempty_samples,
                                    .bad_shapes = nonempty_bad_shapes,
                                    .reference = mean_reference});
const OpDef& max_op = register_op({.name = "max",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .infer = infer_nonempty<"max">,
                                   .cpu = {cpu::max_forward, cpu::max_backward},
                                   .samples = nonempty_samples,
                                   .bad_shapes = nonempty_bad_shapes});

Var reduce(const OpDef& op, Var x, std::initializer_list<int> axes, bool keep) {
  return x.tape->apply(op, {x}, attributes(op.name, x.shape(), axes, keep));
}

}  // namespace

Var sum(Var x, std::initializer_list<int> axes, bool keep) { return reduce(sum_op, x, axes, keep); }
Var mean(Var x, std::initializer_list<int> axes, bool keep) { return reduce(mean_op, x, axes, keep); }
Var max(Var x, std::initializer_list<int> axes, bool keep) { return reduce(max_op, x, axes, keep); }

}  // namespace sinkgrad
