// Checks and attributes of both Sinkhorn ops, and Sinkhorn composed of log_softmax as their reference.
#include "ops/sinkhorn_common.h"

#include <algorithm>

#include "ops/ops.h"

namespace sinkgrad {
namespace {

/// A mask (B, K) as one that broadcasts to (B, ..., K) or, for queries, (B, ..., K, 1).
Var spread(Var mask, int rank, bool queries) {
  Shape s{mask.shape()[0]};
  for (int i = 1; i < rank - 2; ++i) s.push_back(1);
  s.push_back(queries ? mask.shape()[1] : 1);
  s.push_back(queries ? 1 : mask.shape()[1]);
  if (rank == 2) s = Shape{s[1], s[2]};
  return mask.tape->reshape(mask, s);
}

Var spread_pair(Var mask, int rank) {
  if (mask.shape().rank() == 2 || rank == mask.shape().rank()) return mask;
  Shape s{mask.shape()[0]};
  for (int i = 1; i < rank - 2; ++i) s.push_back(1);
  s.push_back(mask.shape()[1]);
  s.push_back(mask.shape()[2]);
  return mask.tape->reshape(mask, s);
}

}  // namespace

void add_sinkhorn_attrs(const char* op, const SinkhornOptions& o, Attrs& attrs) {
  require(o.iterations >= 1, op, ": needs at least one half-step, got iterations = ", o.iterations);
  require(o.tolerance >= 0, op, ": the tolerance must not be negative, got ", o.tolerance);
  attrs.add({"iterations", static_cast<double>(o.iterations)});
  attrs.add({"tolerance", o.tolerance});
  attrs.add({"gradient", static_cast<double>(o.gradient)});
  attrs.add({"rows_sum_to_inverse_count", o.rows_sum_to_inverse_count ? 1.0 : 0.0});
}

SinkhornOptions sinkhorn_options_of(const Attrs& attrs) {
  return {.iterations = static_cast<int>(attrs.integer("iterations")),
          .tolerance = attrs.get("tolerance"),
          .gradient = static_cast<SinkhornGradient>(attrs.integer("gradient")),
          .rows_sum_to_inverse_count = attrs.flag("rows_sum_to_inverse_count"),
          .expose_plan = attrs.flag("expose_plan")};
}

void check_sinkhorn_masks(const char* op, int64_t batch, int64_t n, int64_t m, std::span<const View> in, const Attrs& attrs) {
  const std::span<const View> masks = in.last(3);
  auto check = [&](const View& v, const char* name, std::initializer_list<Shape> wanted) {
    if (!v) return;
    require<ShapeError>(std::find(wanted.begin(), wanted.end(), v.shape) != wanted.end(), op, ": ", name, " must be ", *wanted.begin(), " for ",
                        batch, " x (", n, ",", m, ") scores, got ", ShapesOf{in});
    require<ShapeError>(v.dtype == DType::i32, op, ": ", name, " must be i32, got ", name_of(v.dtype), " among ", ShapesOf{in});
  };
  check(masks[0], "key_is_padding", {{batch, m}});
  check(masks[1], "query_is_padding", {{batch, n}});
  check(masks[2], "pair_is_hidden", {{batch, n, m}, {n, m}});
  require(!masks[2] || attrs.integer("iterations") == 1, op,
          ": pair masks (causal, band) exist at one half-step only, got iterations = ", attrs.integer("iterations"),
          "; a column step would leak hidden queries, and the only doubly stochastic lower-triangular matrix is the identity");
}

Signature sinkhorn_signature(const Shape& out, int64_t count, int64_t n, int64_t m, const Attrs& attrs) {
  const int64_t l = attrs.integer("iterations");
  return {out, {{count, (l + 1) / 2, n}, {count, l / 2, m}, {count, 4}}};
}

bool sinkhorn_has_true_gradient(const Attrs& attrs) { return attrs.integer("gradient") != static_cast<int64_t>(SinkhornGradient::frozen); }

Var compose_sinkhorn(Var scores, const SinkhornOptions& o, const AttentionMasks& masks) {
  const int rank = scores.shape().rank();
  int iterations = o.iterations;
  if (o.tolerance > 0) {  // how many half-steps are taken is not differentiated
    const auto report = sinkhorn_report(sinkhorn(scores, o, masks));
    require(report.least_half_steps == report.most_half_steps, "sinkhorn: the composed form needs one stop for all matrices, got scores ",
            scores.shape());
    iterations = static_cast<int>(report.most_half_steps);
  }
  const bool frozen = o.gradient == SinkhornGradient::frozen;
  auto exclude = [&](Var x) {  // -inf where masked; on rows that are normalised already log_softmax changes nothing else
    if (masks.pair_is_hidden) x = log_softmax(x, -1, spread_pair(masks.pair_is_hidden, rank));
    if (masks.query_is_padding) x = log_softmax(x, -1, spread(masks.query_is_padding, rank, true));
    return x;
  };
  auto rows = [&](Var x) { return exclude(log_softmax(x, -1, masks.key_is_padding ? spread(masks.key_is_padding, rank, false) : Var{})); };
  auto count = [&](Var normalised) { return sum(exp(normalised), {-1, -2}, true); };  // valid lines; its gradient is zero

  // A frozen gradient sees the column potentials g as constants: they come from detached scores.
  Var x = rows(frozen ? scores.tape->detach(scores) : scores), g, g_before;
  const Var first_rows = x;
  for (int step = 1; step < iterations; ++step) {
    if (step % 2 == 0) {
      x = log_softmax(x, -1);
      continue;
    }
    const Var columns = log_softmax(x, -2), target = sub(log(count(x)), log(count(columns)));
    g_before = g;
    if (frozen) g = g ? add(g, sub(target, logsumexp(x, -2))) : sub(target, logsumexp(x, -2));
    x = add(columns, target);
  }
  if (frozen) {
    const bool ends_on_rows = iterations % 2 == 1;
    const Var held = ends_on_rows ? g : g_before;
    x = rows(held ? add(scores, held) : scores);
    if (!ends_on_rows) x = add(x, g_before ? sub(g, g_before) : g);
  }
  Var plan = exp(x);
  return o.rows_sum_to_inverse_count ? div(plan, count(first_rows)) : plan;
}

}  // namespace sinkgrad
