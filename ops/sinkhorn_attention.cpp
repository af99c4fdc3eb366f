// sinkhorn_attention: O = Sinkhorn(scale Q K^T) V for every head, fused. For the backward only potentials are kept;
// scores and plan are computed again, one matrix per thread at a time. At one half-step it is softmax attention.
#include "ops/ops.h"
#include "ops/shape_rules.h"
#include "ops/sinkhorn_common.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel sinkhorn_attention_forward;
BackwardKernel sinkhorn_attention_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs& attrs) {
  const Shape &q = in[0].shape, &k = in[1].shape, &v = in[2].shape;
  const int64_t heads = attrs.integer("heads");
  for (const View& input : in.first(3)) require_float("sinkhorn_attention", input);
  const bool ranks = q.rank() == 3 && k.rank() == 3 && v.rank() == 3;
  require<ShapeError>(ranks && q[0] == k[0] && k[0] == v[0] && q[2] == k[2] && k[1] == v[1] && heads > 0 && q[2] % heads == 0 && v[2] % heads == 0,
                      "sinkhorn_attention: takes Q (B, N, H D), K (B, M, H D), V (B, M, H E) with H = ", heads, " heads, got ", q, ", ", k, " and ",
                      v);
  const int64_t batch = q[0], n = q[1], m = k[1];
  check_sinkhorn_masks("sinkhorn_attention", batch, n, m, in, attrs);
  Signature s = sinkhorn_signature({batch, n, v[2]}, batch * heads, n, m, attrs);
  s.saved[s.saved_count++] = {batch * heads, n};  // the largest score of every row: potentials are relative to it
  if (attrs.flag("expose_plan")) s.saved[s.saved_count++] = {batch, heads, n, m};
  return s;
}

Attrs attributes(int heads, double scale, const SinkhornOptions& o) {
  Attrs attrs{{"heads", static_cast<double>(heads)}, {"scale", scale}};
  add_sinkhorn_attrs("sinkhorn_attention", o, attrs);
  attrs.add({"expose_plan", o.expose_plan ? 1.0 : 0.0});
  return attrs;
}

std::vector<Sample> samples() {
  const auto none = SampleInput::none();
  auto free = [&](const Shape& q, const Shape& k, const Shape& v, int heads, const SinkhornOptions& o) {
    return Sample{{{q}, {k}, {v}, none, none, none}, attributes(heads, 0.6, o)};
  };
  std::vector<Sample> all;
  for (int l : {1, 2, 3, 5}) all.push_back(free({2, 3, 4}, {2, 4, 4}, {2, 4, 6}, 2, {.iterations = l}));
  all.push_back(free({1, 5, 3}, {1, 5, 3}, {1, 5, 3}, 1, {.iterations = 7}));
  all.push_back(free({2, 4, 6}, {2, 4, 6}, {2, 4, 6}, 3, {.iterations = 3, .expose_plan = true}));
  all.push_back(free({2, 4, 2}, {2, 3, 2}, {2, 3, 2}, 1, {.iterations = 3, .gradient = SinkhornGradient::frozen}));
  all.push_back(free({1, 4, 2}, {1, 3, 2}, {1, 3, 2}, 1, {.iterations = 201, .gradient = SinkhornGradient::implicit}));
  all.push_back(free({2, 4, 2}, {2, 3, 2}, {2, 3, 2}, 1, {.iterations = 5, .rows_sum_to_inverse_count = true}));
  all.push_back(free({1, 1, 2}, {1, 5, 2}, {1, 5, 3}, 1, {.iterations = 1}));
  all.push_back(free({1, 17, 4}, {1, 33, 4}, {1, 33, 4}, 2, {.iterations = 3}));
  const auto keys = SampleInput::mask({2, 4}, {0, 0, 0, 1, 0, 1, 0, 0}), queries = SampleInput::mask({2, 3}, {0, 1, 0, 0, 0, 0});
  for (int l : {1, 3, 4}) all.push_back({{{{2, 3, 4}}, {{2, 4, 4}}, {{2, 4, 4}}, keys, queries, none}, attributes(2, 0.6, {.iterations = l})});
  all.push_back(
      {{{{2, 3, 2}}, {{2, 3, 2}}, {{2, 3, 2}}, none, none, SampleInput::mask({3, 3}, {0, 1, 1, 0, 0, 1, 0, 0, 0})}, attributes(1, 0.6, {})});
  all.push_back({{{{2, 3, 2}}, {{2, 0, 2}}, {{2, 0, 2}}, none, none, none}, attributes(1, 0.6, {.iterations = 3}), true});
  return all;
}

std::vector<std::vector<Shape>> bad_shapes() {
  return {{{2, 3, 4}, {2, 4, 6}, {2, 4, 4}},
          {{2, 3, 4}, {2, 4, 4}, {2, 3, 4}},
          {{3, 4}, {4, 4}, {4, 4}},
          {{2, 3, 4}, {1, 4, 4}, {1, 4, 4}},
          {{2, 3, 3}, {2, 4, 3}, {2, 4, 4}}};
}

Var reference(Tape& tape, std::span<const Var> in, const Attrs& attrs) {
  const auto heads = attrs.integer("heads");
  auto split = [&](Var x) {  // (B, N, H D) -> (B, H, N, D)
    const Shape& s = x.shape();
    return transpose(tape.reshape(x, {s[0], s[1], heads, s[2] / heads}), 1, 2);
  };
  const Var scores = scale_shift(matmul(split(in[0]), split(in[1]), false, true), attrs.get("scale"), 0);
  const Var plan = sinkhorn(scores, sinkhorn_options_of(attrs), {in[3], in[4], in[5]});
  const Var out = transpose(matmul(plan, split(in[2])), 1, 2);  // (B, N, H, E)
  return tape.reshape(out, {out.shape()[0], out.shape()[1], out.shape()[2] * out.shape()[3]});
}

const OpDef& sinkhorn_attention_op = register_op({.name = "sinkhorn_attention",
                                                  .min_inputs = 3,
                                                  .max_inputs = 6,
                                                  .infer = infer,
                                                  .cpu = {cpu::sinkhorn_attention_forward, cpu::sinkhorn_attention_backward},
                                                  .samples = samples,
                                                  .bad_shapes = bad_shapes,
                                                  .reference = reference,
                                                  .true_gradient = sinkhorn_has_true_gradient});

}  // namespace

Var sinkhorn_attention(Var q, Var k, Var v, int heads, double scale, const SinkhornOptions& options, const AttentionMasks& masks) {
  return q.tape->apply(sinkhorn_attention_op, {q, k, v, masks.key_is_padding, masks.query_is_padding, masks.pair_is_hidden},
                       attributes(heads, scale, options));
}

View attention_plan(Var output) { return output.tape->saved(output, 4); }

}  // namespace sinkgrad
