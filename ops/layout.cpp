// Ops that move elements: transpose, concat, slice, pad, gather_rows, repeat. Reshape is free and belongs to the tape.
#include <numeric>

#include "ops/indices.h"
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel transpose_forward, concat_forward, slice_forward, pad_forward, gather_rows_forward, repeat_forward;
BackwardKernel transpose_backward, concat_backward, slice_backward, pad_backward, gather_rows_backward, repeat_backward;
}  // namespace cpu

namespace {

constexpr size_t kMaxParts = 8;

Signature infer_transpose(std::span<const View> in, const Attrs& attrs) {
  require_float("transpose", in[0]);
  Shape out = in[0].shape;
  const int a = out.axis(attrs.integer("axis_a"), "transpose"), b = out.axis(attrs.integer("axis_b"), "transpose");
  out.set(a, in[0].shape[b]);
  out.set(b, in[0].shape[a]);
  return out;
}

Signature infer_concat(std::span<const View> in, const Attrs& attrs) {
  Shape out = in[0].shape;
  const int axis = out.axis(attrs.integer("axis"), "concat");
  int64_t length = 0;
  bool fits = true;
  for (const View& x : in) {
    if (!x) continue;
    require_float("concat", x);
    fits &= x.shape.rank() == out.rank();
    for (int i = 0; fits && i < out.rank(); ++i) fits = i == axis || x.shape[i] == out[i];
    if (fits) length += x.shape[axis];
  }
  require<ShapeError>(fits, "concat: the parts must differ in axis ", axis, " only, got ", ShapesOf{in});
  out.set(axis, length);
  return out;
}

Signature infer_slice(std::span<const View> in, const Attrs& attrs) {
  require_float("slice", in[0]);
  Shape out = in[0].shape;
  const int axis = out.axis(attrs.integer("axis"), "slice");
  const int64_t begin = attrs.integer("begin"), end = attrs.integer("end");
  require<ShapeError>(0 <= begin && begin <= end && end <= out[axis], "slice: ", begin, "..", end, " must lie within axis ", axis, ", got ", out);
  out.set(axis, end - begin);
  return out;
}

Signature infer_pad(std::span<const View> in, const Attrs& attrs) {
  require_float("pad", in[0]);
  Shape out = in[0].shape;
  const int axis = out.axis(attrs.integer("axis"), "pad");
  const int64_t before = attrs.integer("before"), after = attrs.integer("after");
  require<ShapeError>(before >= 0 && after >= 0, "pad: lengths must not be negative, got ", before, " and ", after, " for ", out);
  out.set(axis, before + out[axis] + after);
  return out;
}

Signature infer_gather_rows(std::span<const View> in, const Attrs&) {
  const Shape &x = in[0].shape, &rows = in[1].shape;
  require<ShapeError>(x.rank() >= 1 && rows.rank() == 1, "gather_rows: needs rows (R, ...) and indices (K), got ", x, " and ", rows);
  require_float("gather_rows", in[0]);
  require<ShapeError>(in[1].dtype == DType::i32, "gather_rows: the indices must be i32, got ", name_of(in[1].dtype), " of shape ", rows, " for ", x);
  Shape out = x;
  out.set(0, rows[0]);
  return out;
}

Signature infer_repeat(std::span<const View> in, const Attrs& attrs) {
  require_float("repeat", in[0]);
  Shape out = in[0].shape;
  const int axis = out.axis(attrs.integer("axis"), "repeat");
  const int64_t times = attrs.integer("times");
  require<ShapeError>(out[axis] == 1, "repeat: axis ", axis, " must have length 1, got ", out);
  require<ShapeError>(times >= 0, "repeat: the number of times must not be negative, got ", times, " for ", out);
  out.set(axis, times);
  return out;
}

std::vector<Sample> transpose_samples() {
  auto sample = [](const Shape& shape, double a, double b) { return Sample{{{shape}}, {{"axis_a", a}, {"axis_b", b}}, shape.count() == 0}; };
  return {sample({3, 5}, 0, 1),   sample({2, 3, 4}, 0, 1),   sample({2, 3, 4}, 1, 2),    sample({2, 3, 4}, 2, 0), sample({2, 3, 1, 4, 2}, -2, 1),
          sample({5}, 0, 0),      sample({17, 35}, 1, 0),    sample({2, 3, 2, 2}, 1, 1), sample({0, 3}, 0, 1),    sample({1, 7}, 0, 1),
          sample({33, 16}, 0, 1), sample({16, 2, 17}, 0, 2), sample({2, 3, 2, 8}, 1, 2)};
}

std::vector<Sample> concat_samples() {
  auto sample = [](std::vector<SampleInput> parts, double axis) { return Sample{std::move(parts), {{"axis", axis}}}; };
  return {sample({{{2, 3}}, {{2, 1}}, {{2, 4}}}, 1),
          sample({{{2, 3}}, {{2, 3}}}, 0),
          sample({{{2, 3, 2}}, {{2, 1, 2}}}, -2),
          sample({{{4}}}, 0),
          sample({{{2, 0}}, {{2, 3}}}, 1),
          sample({{{3, 2}}, {{3, 2}}}, 1),
          sample({{{1}}, {{2}}, {{1}}, {{3}}, {{1}}, {{1}}, {{2}}, {{1}}}, 0),
          sample({{{3, 8}}, {{3, 4}}}, 1),
          sample({{{3, 4}}, {{3, 3}}}, 1)};
}

std::vector<Sample> slice_samples() {
  auto sample = [](const Shape& shape, double axis, double begin, double end) {
    return Sample{{{shape}}, {{"axis", axis}, {"begin", begin}, {"end", end}}, shape.count() == 0 || begin == end};
  };
  return {sample({3, 5}, 1, 1, 4), sample({3, 5}, 0, 0, 2), sample({2, 4, 3}, -2, 3, 4), sample({7}, 0, 0, 7),
          sample({3, 5}, 1, 2, 2), sample({0, 5}, 1, 1, 4), sample({3, 12}, 1, 4, 12)};
}

std::vector<Sample> pad_samples() {
  auto sample = [](const Shape& shape, double axis, double before, double after, double value) {
    return Sample{{{shape}}, {{"axis", axis}, {"before", before}, {"after", after}, {"value", value}}, shape.count() == 0};
  };
  return {sample({3, 5}, 1, 1, 2, 0), sample({3, 5}, 0, 2, 0, -7), sample({2, 4, 3}, -2, 0, 3, 0.5),
          sample({7}, 0, 0, 0, 0),    sample({3, 0}, 1, 1, 1, 2),  sample({3, 8}, 1, 4, 8, 1)};
}

std::vector<Sample> gather_rows_samples() {
  auto sample = [](const Shape& shape, std::vector<double> rows) {
    return Sample{{{shape}, {.shape = {static_cast<int64_t>(rows.size())}, .integer = true, .values = rows}}, {}, rows.empty() || shape.count() == 0};
  };
  std::vector<double> many(130);  // one row is asked for a hundred times
  for (size_t i = 0; i < many.size(); ++i) many[i] = i % 13 < 10 ? 2 : static_cast<double>(i % 4);
  return {sample({5, 3}, {0, 2, 2, 4}),     sample({4}, {3, 0, 3, 3, 1}), sample({2, 3, 7}, {1}), sample({1, 1}, {0, 0, 0}),
          sample({3, 40}, {2, 0, 2, 1, 2}), sample({5, 3}, {}),           sample({5, 0}, {1, 1}), sample({4, 5}, many)};
}

std::vector<Sample> repeat_samples() {
  auto sample = [](const Shape& shape, double axis, double times) {
    return Sample{{{shape}}, {{"axis", axis}, {"times", times}}, shape.count() == 0 || times == 0};
  };
  return {sample({3, 1}, 1, 4), sample({1, 5}, 0, 3), sample({2, 1, 3}, -2, 2), sample({1}, 0, 1),    sample({1, 70}, 0, 7),
          sample({3, 1}, 1, 0), sample({0, 1}, 1, 3), sample({2, 1, 8}, 1, 20), sample({3, 1}, 1, 65)};
}

std::vector<std::vector<Shape>> transpose_bad_shapes() { return {{{}}, {{4}}}; }
std::vector<std::vector<Shape>> concat_bad_shapes() { return {{{}, {}}, {{2, 3}, {3, 3}}, {{2, 3}, {2}}, {{2, 3}, {2, 4}, {3, 5}}}; }
std::vector<std::vector<Shape>> slice_bad_shapes() { return {{{}}, {{4}}, {{3, 3}}}; }
std::vector<std::vector<Shape>> pad_bad_shapes() { return {{{}}, {{4}}}; }
std::vector<std::vector<Shape>> gather_rows_bad_shapes() { return {{{}, {3}}, {{3, 2}, {2, 2}}, {{3, 2}, {4}}}; }
std::vector<std::vector<Shape>> repeat_bad_shapes() { return {{{}}, {{3, 2}}}; }

// Every part padded to the whole, then added.
Var concat_reference(Tape&, std::span<const Var> in, const Attrs& attrs) {
  const auto axis = static_cast<int>(attrs.get("axis"));
  const int64_t whole = std::accumulate(in.begin(), in.end(), int64_t{0}, [&](int64_t n, Var x) { return n + x.shape()[axis]; });
  int64_t before = 0;
  Var y;
  for (Var x : in) {
    const int64_t length = x.shape()[axis];
    const Var part = pad(x, axis, before, whole - before - length);
    y = y ? add(y, part) : part;
    before += length;
  }
  return y;
}

const OpDef& transpose_op = register_op({.name = "transpose",
                                         .min_inputs = 1,
                                         .max_inputs = 1,
                                         .infer = infer_transpose,
                                         .cpu = {cpu::transpose_forward, cpu::transpose_backward},
                                         .samples = transpose_samples,
                                         .bad_shapes = transpose_bad_shapes});
const OpDef& concat_op = register_op({.name = "concat",
                                      .min_inputs = 1,
                                      .max_inputs = kMaxParts,
                                      .infer = infer_concat,
                                      .cpu = {cpu::concat_forward, cpu::concat_backward},
                                      .samples = concat_samples,
                                      .bad_shapes = concat_bad_shapes,
                                      .reference = concat_reference});
const OpDef& slice_op = register_op({.name = "slice",
                                     .min_inputs = 1,
                                     .max_inputs = 1,
                                     .infer = infer_slice,
                                     .cpu = {cpu::slice_forward, cpu::slice_backward},
                                     .samples = slice_samples,
                                     .bad_shapes = slice_bad_shapes});
const OpDef& pad_op = register_op({.name = "pad",
                                   .min_inputs = 1,
                                   .max_inputs = 1,
                                   .infer = infer_pad,
                                   .cpu = {cpu::pad_forward, cpu::pad_backward},
                                   .samples = pad_samples,
                                   .bad_shapes = pad_bad_shapes});
const OpDef& gather_rows_op = register_op({.name = "gather_rows",
                                           .min_inputs = 2,
                                           .max_inputs = 2,
                                           .infer = infer_gather_rows,
                                           .cpu = {cpu::gather_rows_forward, cpu::gather_rows_backward},
                                           .samples = gather_rows_samples,
                                           .bad_shapes = gather_rows_bad_shapes});
const OpDef& repeat_op = register_op({.name = "repeat",
                                      .min_inputs = 1,
                                      .max_inputs = 1,
                                      .infer = infer_repeat,
                                      .cpu = {cpu::repeat_forward, cpu::repeat_backward},
                                      .samples = repeat_samples,
                                      .bad_shapes = repeat_bad_shapes});

}  // namespace

Var transpose(Var x, int axis_a, int axis_b) {
  return x.tape->apply(transpose_op, {x}, {{"axis_a", static_cast<double>(axis_a)}, {"axis_b", static_cast<double>(axis_b)}});
}

Var concat(std::span<const Var> parts, int axis) {
  require(!parts.empty(), "concat: needs at least one part");
  return parts[0].tape->apply(concat_op, parts, {{"axis", static_cast<double>(axis)}});
}

Var slice(Var x, int axis, int64_t begin, int64_t end) {
  return x.tape->apply(slice_op, {x},
                       {{"axis", static_cast<double>(axis)}, {"begin", static_cast<double>(begin)}, {"end", static_cast<double>(end)}});
}

Var pad(Var x, int axis, int64_t before, int64_t after, double value) {
  return x.tape->apply(
      pad_op, {x},
      {{"axis", static_cast<double>(axis)}, {"before", static_cast<double>(before)}, {"after", static_cast<double>(after)}, {"value", value}});
}

Var gather_rows(Var x, Var rows) {
  if (x.shape().rank() > 0) require_indices("gather_rows", "index", rows, x.shape()[0], {}, "the rows of ", x.shape());
  return x.tape->apply(gather_rows_op, {x, rows});
}

Var repeat(Var x, int axis, int64_t times) {
  return x.tape->apply(repeat_op, {x}, {{"axis", static_cast<double>(axis)}, {"times", static_cast<double>(times)}});
}

}  // namespace sinkgrad
