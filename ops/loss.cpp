// Losses: each is a scalar, the mean over what counts. Rows whose label is ignore_index count nowhere, neither above nor below the line;
// when no row counts, the loss and its gradient are 0.
#include "ops/indices.h"
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel cross_entropy_forward, nll_forward, mse_forward;
BackwardKernel cross_entropy_backward, nll_backward, mse_backward;
}  // namespace cpu

namespace {

void require_labelled_rows(const char* name, std::span<const View> in) {
  const Shape &x = in[0].shape, &labels = in[1].shape;
  require<ShapeError>(x.rank() == 2 && labels == Shape{x[0]}, name, ": takes (B, V) and labels (B), got ", x, " and ", labels);
  require_float(name, in[0]);
  require<ShapeError>(in[1].dtype == DType::i32, name, ": labels must be i32, got ", name_of(in[1].dtype), " of shape ", labels, " for ", x);
}

void require_labels(const char* name, Var x, Var labels, int64_t ignore_index) {
  if (x.shape().rank() == 2) require_indices(name, "label", labels, x.shape()[1], ignore_index, "the ", x.shape()[1], " classes of ", x.shape());
}

Signature infer_cross_entropy(std::span<const View> in, const Attrs& attrs) {
  require_labelled_rows("cross_entropy", in);
  const double smoothing = attrs.get("smoothing");
  require(smoothing >= 0 && smoothing <= 1, "cross_entropy: smoothing must lie in 0..1, got ", smoothing);
  return {Shape{}, {in[1].shape, in[1].shape}};  // largest logit, logsumexp relative to it
}

Signature infer_nll(std::span<const View> in, const Attrs&) {
  require_labelled_rows("nll", in);
  return Shape{};
}

Signature infer_mse(std::span<const View> in, const Attrs&) {
  require<ShapeError>(in[0].shape == in[1].shape, "mse: both shapes must be equal, got ", in[0].shape, " and ", in[1].shape);
  require<ShapeError>(in[0].shape.count() > 0, "mse: needs at least one element, got ", in[0].shape, " and ", in[1].shape);
  for (const View& v : in) require_float("mse", v);
  return Shape{};
}

SampleInput random_labels(int64_t rows, int64_t classes) {
  return {.shape = {rows}, .low = 0, .high = static_cast<double>(classes), .integer = true};
}
SampleInput given_labels(std::vector<double> v) { return SampleInput::mask({static_cast<int64_t>(v.size())}, v); }

Attrs cross_entropy_attrs(double smoothing, Smoothing form, int64_t ignore_index) {
  return {{"smoothing", smoothing}, {"fairseq", form == Smoothing::fairseq ? 1.0 : 0.0}, {"ignore_index", static_cast<double>(ignore_index)}};
}

std::vector<Sample> cross_entropy_samples() {
  const auto attrs = cross_entropy_attrs;
  const Attrs plain = attrs(0, Smoothing::torch, -100), torch = attrs(0.1, Smoothing::torch, -100), fairseq = attrs(0.2, Smoothing::fairseq, -100);
  return {{{{{3, 4}}, random_labels(3, 4)}, plain},
          {{{{1, 7}, -3, 3}, random_labels(1, 7)}, plain},
          {{{{3, 6}, 95, 105}, random_labels(3, 6)}, plain},
          {{{{5, 9}}, random_labels(5, 9)}, torch},
          {{{{5, 9}}, random_labels(5, 9)}, fairseq},
          {{{{4, 3}}, given_labels({2, -100, 0, -100})}, plain},
          {{{{4, 3}}, given_labels({1, 2, 1, 0})}, attrs(0.1, Smoothing::torch, 1)},
          {{{{4, 3}}, given_labels({1, 2, 1, 0})}, attrs(0.1, Smoothing::fairseq, 1)},
          {{{{3, 33}}, random_labels(3, 33)}, attrs(1, Smoothing::torch, -100)},
          {{{{2, 5}}, given_labels({-100, -100})}, torch, true},
          {{{{3, 1}}, random_labels(3, 1)}, fairseq, true},
          {{{{3, 1}}, random_labels(3, 1)}, torch, true},
          {{{{0, 5}}, random_labels(0, 5)}, plain, true},
          // Widths that kernels treat each in its own way, and more rows than a block takes.
          {{{{2, 31}}, random_labels(2, 31)}, plain},
          {{{{2, 65}}, random_labels(2, 65)}, torch},
          {{{{1, 1025}}, random_labels(1, 1025)}, fairseq},
          {{{{270, 2}}, random_labels(270, 2)}, plain}};
}

std::vector<Sample> nll_samples() {
  const Attrs plain{{"ignore_index", -100}};
  return {{{{{3, 4}, -4, 0}, random_labels(3, 4)}, plain},
          {{{{1, 1}, -4, 0}, random_labels(1, 1)}, plain},
          {{{{5, 9}, -4, 0}, given_labels({8, 2, 0, 2, 2})}, {{"ignore_index", 2}}},
          {{{{2, 5}, -4, 0}, given_labels({-100, -100})}, plain, true},
          {{{{0, 5}, -4, 0}, random_labels(0, 5)}, plain, true},
          {{{{270, 2}, -4, 0}, random_labels(270, 2)}, plain}};
}

std::vector<Sample> mse_samples() {
  return {{{{{3, 4}}, {{3, 4}}}},
          {{{{1}}, {{1}}}},
          {{{{2, 3, 5}, 3, 9}, {{2, 3, 5}}}},
          {{{{}}, {{}}}},
          {{{{4, 3}}, {.shape = {4, 3}, .differentiable = false}}},
          {{{{1025}}, {{1025}}}}};
}

std::vector<std::vector<Shape>> bad_labels() { return {{{3, 4}, {4}}, {{3, 4}, {3, 1}}, {{3}, {3}}, {{2, 3, 4}, {2, 3}}, {{3, 4}, {3}}}; }
std::vector<std::vector<Shape>> bad_mse_shapes() { return {{{3, 4}, {4}}, {{3, 4}, {4, 3}}, {{1}, {}}, {{0, 3}, {0, 3}}}; }

/// -1/n sum over the n rows that count of (own logp[label] + each sum(logp)).
Var labelled_mean(Var logp, Var labels, int64_t ignore_index, double own, double each) {
  Var total;
  int64_t n = 0;
  for (int row = 0; const int64_t label : labels.span<int32_t>()) {
    const Var values = slice(logp, 0, row, row + 1);
    ++row;
    if (label == ignore_index) continue;
    const Var term = add(scale_shift(sum(slice(values, 1, label, label + 1)), own, 0), scale_shift(sum(values), each, 0));
    total = total ? add(total, term) : term;
    ++n;
  }
  return total ? scale_shift(total, -1.0 / static_cast<double>(n), 0) : scale_shift(sum(logp), 0, 0);
}

Var cross_entropy_reference(Tape&, std::span<const Var> in, const Attrs& attrs) {
  const double smoothing = attrs.get("smoothing"), classes = static_cast<double>(in[0].shape()[1]);
  const double each = attrs.flag("fairseq") ? smoothing / std::max(1.0, classes - 1) : smoothing / classes;
  const double own = attrs.flag("fairseq") ? 1 - smoothing - each : 1 - smoothing;
  return labelled_mean(log_softmax(in[0]), in[1], attrs.integer("ignore_index"), own, each);
}

Var nll_reference(Tape&, std::span<const Var> in, const Attrs& attrs) { return labelled_mean(in[0], in[1], attrs.integer("ignore_index"), 1, 0); }

Var mse_reference(Tape&, std::span<const Var> in, const Attrs&) {
  const Var difference = sub(in[0], in[1]);
  return mean(mul(difference, difference));
}

const OpDef& cross_entropy_op = register_op({.name = "cross_entropy",
                                             .min_inputs = 2,
                                             .max_inputs = 2,
                                             .infer = infer_cross_entropy,
                                             .cpu = {cpu::cross_entropy_forward, cpu::cross_entropy_backward},
                                             .samples = cross_entropy_samples,
                                             .bad_shapes = bad_labels,
                                             .reference = cross_entropy_reference});

const OpDef& nll_op = register_op({.name = "nll",
                                   .min_inputs = 2,
                                   .max_inputs = 2,
                                   .infer = infer_nll,
                                   .cpu = {cpu::nll_forward, cpu::nll_backward},
                                   .samples = nll_samples,
                                   .bad_shapes = bad_labels,
                                   .reference = nll_reference});

const OpDef& mse_op = register_op({.name = "mse",
                                   .min_inputs = 2,
                                   .max_inputs = 2,
                                   .infer = infer_mse,
                                   .cpu = {cpu::mse_forward, cpu::mse_backward},
                                   .samples = mse_samples,
                                   .bad_shapes = bad_mse_shapes,
                                   .reference = mse_reference});

}  // namespace

Var cross_entropy(Var logits, Var labels, double smoothing, Smoothing form, int64_t ignore_index) {
  require_labels("cross_entropy", logits, labels, ignore_index);
  return logits.tape->apply(cross_entropy_op, {logits, labels}, cross_entropy_attrs(smoothing, form, ignore_index));
}

Var nll(Var log_probabilities, Var labels, int64_t ignore_index) {
  require_labels("nll", log_probabilities, labels, ignore_index);
  return log_probabilities.tape->apply(nll_op, {log_probabilities, labels}, {{"ignore_index", static_cast<double>(ignore_index)}});
}

Var mse(Var x, Var target) { return x.tape->apply(mse_op, {x, target}); }

}  // namespace sinkgrad
