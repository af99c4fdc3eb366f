// Layer norm and batch norm. Statistics are taken in two passes about an element of the data, so that a large mean costs no digits.
// Batch norm is pure: the layer that owns the running statistics reads saved(0) and saved(1) and updates them.
#include <algorithm>

#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel layer_norm_forward, batch_norm_train_forward, batch_norm_eval_forward;
BackwardKernel layer_norm_backward, batch_norm_train_backward, batch_norm_eval_backward;
}  // namespace cpu

namespace {

/// (..., C) with one value per channel in every further input.
void require_channels(const char* name, std::span<const View> in, const Attrs& attrs, bool needs_rows = false) {
  const Shape& x = in[0].shape;
  const auto fits = [&](const View& v) { return v.shape == Shape{x[-1]}; };
  const bool ok = x.rank() > 0 && std::all_of(in.begin() + 1, in.end(), fits);
  const ShapesOf shapes{in};
  require<ShapeError>(ok, name, ": the input must be (..., C) and each of the others (C), got ", shapes);
  require<ShapeError>(!needs_rows || x.count(0, x.rank() - 1) > 0, name, ": statistics need at least one row, got ", shapes);
  for (const View& v : in) require_float(name, v);
  require(attrs.get("epsilon") > 0, name, ": epsilon must be positive, got ", attrs.get("epsilon"));
}

Signature infer_layer_norm(std::span<const View> in, const Attrs& attrs) {
  require_channels("layer_norm", in, attrs);
  const Shape rows{in[0].shape.count(0, in[0].shape.rank() - 1)};
  return {in[0].shape, {rows, rows}};  // mean relative to the first element, 1 / standard deviation
}

Signature infer_batch_norm_train(std::span<const View> in, const Attrs& attrs) {
  require_channels("batch_norm_train", in, attrs, true);
  const Shape channels{in[0].shape[-1]};
  return {in[0].shape, {channels, channels, channels}};  // mean, biased variance, mean relative to the first row
}

Signature infer_batch_norm_eval(std::span<const View> in, const Attrs& attrs) {
  require_channels("batch_norm_eval", in, attrs);
  return in[0].shape;
}

const Attrs kEpsilon{{"epsilon", 1e-5}};

std::vector<Sample> layer_norm_samples() {
  return {{{{{3, 4}}, {{4}}, {{4}}}, kEpsilon},
          {{{{2, 3, 5}}, {{5}}, {{5}}}, kEpsilon},
          {{{{7}}, {{7}}, {{7}}}, {{"epsilon", 1e-2}}},
          {{{{1, 33}, 3, 9}, {{33}}, {{33}}}, kEpsilon},
          {{{{70, 9}}, {{9}}, {{9}}}, kEpsilon},
          {{{{3, 1}}, {{1}}, {{1}}}, kEpsilon},  // the output is the bias
          {{{{0, 5}}, {{5}}, {{5}}}, kEpsilon, true},
          // Widths that kernels treat each in its own way, and more rows than a block takes.
          {{{{2, 31}}, {{31}}, {{31}}}, kEpsilon},
          {{{{2, 65}}, {{65}}, {{65}}}, kEpsilon},
          {{{{1, 260}}, {{260}}, {{260}}}, kEpsilon},
          {{{{270, 2}}, {{2}}, {{2}}}, kEpsilon}};
}

std::vector<Sample> batch_norm_train_samples() {
  return {
      {{{{4, 3}}, {{3}}, {{3}}}, kEpsilon},          {{{{3, 2, 5}}, {{5}}, {{5}}}, kEpsilon},  {{{{2, 3, 2, 3}}, {{3}}, {{3}}}, {{"epsilon", 1e-2}}},
      {{{{9, 17}, 3, 9}, {{17}}, {{17}}}, kEpsilon}, {{{{70, 3}}, {{3}}, {{3}}}, kEpsilon},    {{{{6, 1}}, {{1}}, {{1}}}, kEpsilon},
      {{{{1, 4}}, {{4}}, {{4}}}, kEpsilon},  // the output is the bias
      {{{{4, 0}}, {{0}}, {{0}}}, kEpsilon, true},    {{{{11, 33}}, {{33}}, {{33}}}, kEpsilon}, {{{{3, 65}}, {{65}}, {{65}}}, kEpsilon},
      {{{{270, 2}}, {{2}}, {{2}}}, kEpsilon}};
}

std::vector<Sample> batch_norm_eval_samples() {
  auto sample = [](const Shape& x, double epsilon) {
    const Shape channels{x[-1]};
    return Sample{{{x},
                   {channels},
                   {channels},
                   {.shape = channels, .differentiable = false},
                   {.shape = channels, .low = 0.5, .high = 2, .differentiable = false}},
                  {{"epsilon", epsilon}}};
  };
  std::vector<Sample> all{sample({4, 3}, 1e-5), sample({3, 2, 5}, 1e-2), sample({1, 17}, 1e-5),  sample({70, 1}, 1e-5),
                          sample({6}, 1e-5),    sample({5, 33}, 1e-5),   sample({270, 2}, 1e-5), sample({0, 5}, 1e-5)};
  all.back().zero_gradient = true;
  return all;
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{3, 4}, {3}, {4}}, {{3, 4}, {4}, {5}}, {{3, 4}, {4}, {1, 4}}, {{}, {1}, {1}}}; }
std::vector<std::vector<Shape>> bad_train_shapes() {
  auto all = bad_shapes();
  all.push_back({{0, 4}, {4}, {4}});
  return all;
}
std::vector<std::vector<Shape>> bad_eval_shapes() { return {{{3, 4}, {4}, {4}, {3}, {4}}, {{3, 4}, {4}, {4}, {4}, {5}}, {{}, {1}, {1}, {1}, {1}}}; }

/// centred / sqrt(variance + epsilon) * gain + bias
Var scaled(Var centred, Var variance, Var gain, Var bias, const Attrs& attrs) {
  return add(mul(div(centred, sqrt(scale_shift(variance, 1, attrs.get("epsilon")))), gain), bias);
}

Var layer_norm_reference(Tape&, std::span<const Var> in, const Attrs& attrs) {
  const Var centred = sub(in[0], mean(in[0], {-1}, true));
  return scaled(centred, mean(mul(centred, centred), {-1}, true), in[1], in[2], attrs);
}

Var batch_norm_train_reference(Tape& tape, std::span<const Var> in, const Attrs& attrs) {
  const Shape shape = in[0].shape();
  const Var x = tape.reshape(in[0], {shape.count(0, shape.rank() - 1), shape[-1]});
  const Var centred = sub(x, mean(x, {0}));
  return tape.reshape(scaled(centred, mean(mul(centred, centred), {0}), in[1], in[2], attrs), shape);
}

Var batch_norm_eval_reference(Tape&, std::span<const Var> in, const Attrs& attrs) { return scaled(sub(in[0], in[3]), in[4], in[1], in[2], attrs); }

const OpDef& layer_norm_op = register_op({.name = "layer_norm",
                                          .min_inputs = 3,
                                          .max_inputs = 3,
                                          .infer = infer_layer_norm,
                                          .cpu = {cpu::layer_norm_forward, cpu::layer_norm_backward},
                                          .samples = layer_norm_samples,
                                          .bad_shapes = bad_shapes,
                                          .reference = layer_norm_reference});

const OpDef& batch_norm_train_op = register_op({.name = "batch_norm_train",
                                                .min_inputs = 3,
                                                .max_inputs = 3,
                                                .infer = infer_batch_norm_train,
                                                .cpu = {cpu::batch_norm_train_forward, cpu::batch_norm_train_backward},
                                                .samples = batch_norm_train_samples,
                                                .bad_shapes = bad_train_shapes,
                                                .reference = batch_norm_train_reference});

const OpDef& batch_norm_eval_op = register_op({.name = "batch_norm_eval",
                                               .min_inputs = 5,
                                               .max_inputs = 5,
                                               .infer = infer_batch_norm_eval,
                                               .cpu = {cpu::batch_norm_eval_forward, cpu::batch_norm_eval_backward},
                                               .samples = batch_norm_eval_samples,
                                               .bad_shapes = bad_eval_shapes,
                                               .reference = batch_norm_eval_reference});

}  // namespace

Var layer_norm(Var x, Var gain, Var bias, double epsilon) { return x.tape->apply(layer_norm_op, {x, gain, bias}, {{"epsilon", epsilon}}); }

Var batch_norm_train(Var x, Var gain, Var bias, double epsilon) {
  return x.tape->apply(batch_norm_train_op, {x, gain, bias}, {{"epsilon", epsilon}});
}

Var batch_norm_eval(Var x, Var gain, Var bias, Var mean, Var variance, double epsilon) {
  // Statistics are constants: the kernel gives them no gradient.
  Tape& tape = *x.tape;
  return tape.apply(batch_norm_eval_op, {x, gain, bias, tape.detach(mean), tape.detach(variance)}, {{"epsilon", epsilon}});
}

}  // namespace sinkgrad
