// The PCT's parts. Sampling and grouping run on values, outside the tape: indices have no gradient.
#include "models/point_cloud.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/parallel.h"

namespace sinkgrad {
namespace {

constexpr float kOriginRadius = 1e-3f;  // squared; below it a point counts as absent

float square_distance(const float* a, const float* b) {
  return (a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]) + (a[2] - b[2]) * (a[2] - b[2]);
}

void require_points(const char* op, const View& points) {
  require<ShapeError>(points.dtype == DType::f32 && points.shape.rank() == 3 && points.shape[2] == 3, op, ": points must be f32 (B, N, 3), got ",
                      name_of(points.dtype), " ", points.shape);
}

}  // namespace

Tensor farthest_points(const View& points, int64_t count) {
  require_points("farthest_points", points);
  const int64_t n = points.shape[1];
  require<ShapeError>(0 < count && count <= n, "farthest_points: cannot choose ", count, " points, got ", points.shape);
  Tensor chosen({points.shape[0], count}, DType::i32);
  parallel_for(points.shape[0], 1, [&](int64_t begin, int64_t end) {
    const float origin[3] = {0, 0, 0};
    for (int64_t b = begin; b < end; ++b) {
      const float* xyz = points.as<float>() + b * n * 3;
      std::vector<float> distance(static_cast<size_t>(n), 1e10f);  // to the nearest chosen point
      int64_t last = 0;
      for (int64_t s = 1; s < count; ++s) {
        int64_t best = 0;
        float farthest = -1;
        for (int64_t i = 0; i < n; ++i) {
          if (square_distance(xyz + 3 * i, origin) <= kOriginRadius) continue;
          float& d = distance[static_cast<size_t>(i)];
          d = std::min(d, square_distance(xyz + 3 * i, xyz + 3 * last));
          if (d > farthest) farthest = d, best = i;
        }
        chosen.span<int32_t>()[static_cast<size_t>(b * count + s)] = static_cast<int32_t>(last = best);
      }
    }
  });
  return chosen;
}

Tensor nearest_points(const View& points, const View& centres, int64_t k) {
  require_points("nearest_points", points);
  require_points("nearest_points", centres);
  const int64_t n = points.shape[1], s = centres.shape[1];
  require<ShapeError>(points.shape[0] == centres.shape[0] && 0 < k && k <= n, "nearest_points: cannot choose ", k, " neighbours, got ", points.shape,
                      " and centres ", centres.shape);
  Tensor nearest({points.shape[0], s, k}, DType::i32);
  parallel_for(points.shape[0] * s, grain_for(n * 8), [&](int64_t begin, int64_t end) {
    std::vector<std::pair<float, int32_t>> order(static_cast<size_t>(n));
    for (int64_t c = begin; c < end; ++c) {
      const float* xyz = points.as<float>() + c / s * n * 3;
      for (int64_t i = 0; i < n; ++i)
        order[static_cast<size_t>(i)] = {square_distance(xyz + 3 * i, centres.as<float>() + 3 * c), static_cast<int32_t>(i)};
      std::partial_sort(order.begin(), order.begin() + k, order.end());
      for (int64_t j = 0; j < k; ++j) nearest.span<int32_t>()[static_cast<size_t>(c * k + j)] = order[static_cast<size_t>(j)].second;
    }
  });
  return nearest;
}

Tensor flat_rows(const View& indices, int64_t points) {
  Tensor rows({indices.shape.count()}, DType::i32);
  const int64_t per_cloud = indices.shape.count(1, indices.shape.rank());
  for (int64_t i = 0; i < rows.count(); ++i)
    rows.span<int32_t>()[static_cast<size_t>(i)] = indices.as<int32_t>()[i] + static_cast<int32_t>(i / per_cloud * points);
  return rows;
}

Var group_features(Var features, Var centre_rows, Var neighbour_rows) {
  Tape& tape = *features.tape;
  const int64_t batch = features.shape()[0], channels = features.shape()[2];
  const int64_t groups = centre_rows.shape().count(), k = neighbour_rows.shape().count() / groups;
  const Var flat = tape.reshape(features, {features.shape().count() / channels, channels});
  const Var centres = repeat(tape.reshape(gather_rows(flat, centre_rows), {groups, 1, channels}), 1, k);  // (B S, k, C)
  const Var neighbours = tape.reshape(gather_rows(flat, neighbour_rows), {groups, k, channels});
  const std::array parts{sub(neighbours, centres), centres};
  return tape.reshape(concat(parts, 2), {batch, groups / batch, k, 2 * channels});
}

LocalOperation::LocalOperation(Module& parent, const std::string& name, int64_t in, int64_t out)
    : Module(parent, name), layer1_(*this, "conv1", "bn1", in, out), layer2_(*this, "conv2", "bn2", out, out) {}

Var LocalOperation::operator()(Var x) { return max(layer2_(layer1_(x)), {2}); }

OffsetAttention::OffsetAttention(Module& parent, const std::string& name, int64_t dim, std::optional<SinkhornOptions> sinkhorn)
    : Module(parent, name),
      sinkhorn_(sinkhorn),
      query_(*this, "q_conv", dim, dim / 4, {.bias = false}),
      value_(*this, "v_conv", dim, dim),
      output_(*this, "trans_conv", dim, dim),
      norm_(*this, "after_norm", dim) {}

Var OffsetAttention::operator()(Var x) {
  const Var q = query_(x);                       // (B, N, dim / 4)
  const Var scores = matmul(q, q, false, true);  // (B, N, N)
  Var plan;
  if (sinkhorn_) {
    plan = sinkhorn(scores, *sinkhorn_);
  } else {
    const Var rows = softmax(scores);
    plan = div(rows, scale_shift(sum(rows, {1}, true), 1, 1e-9));
  }
  const Var attended = matmul(plan, value_(x), true);  // point j gathers by column j
  return add(x, relu(norm_(output_(sub(x, attended)))));
}

PointTrunk::PointTrunk(Module& parent, const std::string& name, int64_t dim, std::optional<SinkhornOptions> sinkhorn)
    : Module(parent, name),
      layer1_(*this, "conv1", "bn1", dim, dim),
      layer2_(*this, "conv2", "bn2", dim, dim),
      attention1_(*this, "sa1", dim, sinkhorn),
      attention2_(*this, "sa2", dim, sinkhorn),
      attention3_(*this, "sa3", dim, sinkhorn),
      attention4_(*this, "sa4", dim, sinkhorn) {}

Var PointTrunk::operator()(Var x) {
  const Var a = attention1_(layer2_(layer1_(x))), b = attention2_(a), c = attention3_(b), d = attention4_(c);
  const std::array parts{a, b, c, d};
  return concat(parts, 2);
}

}  // namespace sinkgrad
