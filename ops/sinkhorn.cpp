// sinkhorn: scores (..., N, M) to a plan with row sums 1 and, in the limit, column sums N/M. The first dimension is the batch of
// the masks; matrices in between (heads) share their masks. A matrix never depends on others in its batch.
#include "ops/ops.h"
#include "ops/shape_rules.h"
#include "ops/sinkhorn_common.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel sinkhorn_forward;
BackwardKernel sinkhorn_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs& attrs) {
  const Shape& s = in[0].shape;
  require_float("sinkhorn", in[0]);
  require<ShapeError>(s.rank() >= 2, "sinkhorn: needs scores (..., N, M), got ", s);
  check_sinkhorn_masks("sinkhorn", s.rank() == 2 ? 1 : s[0], s[-2], s[-1], in, attrs);
  return sinkhorn_signature(s, s.count(0, s.rank() - 2), s[-2], s[-1], attrs);
}

Attrs attributes(const SinkhornOptions& o) {
  Attrs attrs;
  add_sinkhorn_attrs("sinkhorn", o, attrs);
  return attrs;
}

std::vector<Sample> samples() {
  const auto none = SampleInput::none();
  auto free = [&](const Shape& s, const SinkhornOptions& o, double range = 1.5) {
    return Sample{{{s, -range, range}, none, none, none}, attributes(o)};
  };
  std::vector<Sample> all;
  for (int l : {1, 2, 3, 4, 5, 9}) all.push_back(free({2, 3, 4}, {.iterations = l}));
  all.push_back(free({2, 2, 5, 3}, {.iterations = 3}));
  all.push_back(free({4, 4}, {.iterations = 21}));
  all.push_back(free({3, 19}, {.iterations = 3}, 6));
  all.push_back(free({2, 3, 3}, {.iterations = 5, .rows_sum_to_inverse_count = true}));
  all.push_back(free({1, 6, 6}, {.iterations = 51, .tolerance = 0.02}));
  for (int l : {3, 4, 5}) all.push_back(free({2, 4, 3}, {.iterations = l, .gradient = SinkhornGradient::frozen}));
  all.push_back(free({2, 4, 3}, {.iterations = 201, .gradient = SinkhornGradient::implicit}, 1));
  all.push_back(free({3, 3}, {.iterations = 202, .gradient = SinkhornGradient::implicit}, 1));
  const auto keys = SampleInput::mask({2, 4}, {0, 0, 0, 1, 0, 1, 0, 0}), queries = SampleInput::mask({2, 3}, {0, 1, 0, 0, 0, 0});
  for (int l : {1, 3, 4}) all.push_back({{{{2, 2, 3, 4}}, keys, queries, none}, attributes({.iterations = l})});
  all.push_back({{{{2, 3, 4}}, keys, queries, none}, attributes({.iterations = 3, .gradient = SinkhornGradient::frozen})});
  all.push_back({{{{2, 3, 4}, -1, 1}, keys, queries, none}, attributes({.iterations = 201, .gradient = SinkhornGradient::implicit})});
  all.push_back({{{{2, 3, 4}}, keys, queries, none}, attributes({.iterations = 3, .rows_sum_to_inverse_count = true})});
  all.push_back({{{{2, 3, 3}}, none, none, SampleInput::mask({3, 3}, {0, 1, 1, 0, 0, 1, 0, 0, 0})}, attributes({})});
  all.push_back({{{{1, 1, 4}}, none, none, none}, attributes({.iterations = 3}), true});
  all.push_back({{{{1, 4, 1}}, none, none, none}, attributes({.iterations = 3}), true});
  all.push_back({{{{0, 3, 4}}, none, none, none}, attributes({.iterations = 3}), true});
  all.push_back({{{{2, 0, 4}}, none, none, none}, attributes({.iterations = 3}), true});
  return all;
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{3}}, {{2, 3, 4}, {2, 3}}}; }

Var reference(Tape&, std::span<const Var> in, const Attrs& attrs) {
  return compose_sinkhorn(in[0], sinkhorn_options_of(attrs), {in[1], in[2], in[3]});
}

const OpDef& sinkhorn_op = register_op({.name = "sinkhorn",
                                        .min_inputs = 1,
                                        .max_inputs = 4,
                                        .infer = infer,
                                        .cpu = {cpu::sinkhorn_forward, cpu::sinkhorn_backward},
                                        .samples = samples,
                                        .bad_shapes = bad_shapes,
                                        .reference = reference,
                                        .true_gradient = sinkhorn_has_true_gradient});

}  // namespace

Var sinkhorn(Var scores, const SinkhornOptions& options, const AttentionMasks& masks) {
  return scores.tape->apply(sinkhorn_op, {scores, masks.key_is_padding, masks.query_is_padding, masks.pair_is_hidden}, attributes(options));
}

}  // namespace sinkgrad
