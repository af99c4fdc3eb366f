// The PCT's parts. Sampling and grouping run on values, outside the tape: indices have no gradient.
#include "models/point_cloud.h"

#include <algorithm>

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

void farthest_points(const View& points, const View& chosen) {
  require_points("farthest_points", points);
  const int64_t n = points.shape[1], count = chosen.shape[1];
  require<ShapeError>(0 < count && count <= n && chosen.shape == Shape{points.shape[0], count}, "farthest_points: cannot choose ", chosen.shape,
                      " points, got ", points.shape);
  parallel_for(points.shape[0], 1, [&](int64_t begin, int64_t end) {
    const float origin[3] = {0, 0, 0};
    ScratchScope scratch;
    float* distance = scratch.take<float>(n);  // to the nearest chosen point
    for (int64_t b = begin; b < end; ++b) {
      const float* xyz = points.as<float>() + b * n * 3;
      int32_t* out = chosen.as<int32_t>() + b * count;
      std::fill_n(distance, n, 1e10f);
      out[0] = 0;
      for (int64_t s = 1; s < count; ++s) {
        const float* last = xyz + 3 * out[s - 1];
        int64_t best = 0;
        float farthest = -1;
        for (int64_t i = 0; i < n; ++i) {
          if (square_distance(xyz + 3 * i, origin) <= kOriginRadius) continue;
          distance[i] = std::min(distance[i], square_distance(xyz + 3 * i, last));
          if (distance[i] > farthest) farthest = distance[i], best = i;
        }
        out[s] = static_cast<int32_t>(best);
      }
    }
  });
}

void nearest_points(const View& points, const View& centres, const View& nearest) {
  require_points("nearest_points", points);
  require_points("nearest_points", centres);
  const int64_t n = points.shape[1], s = centres.shape[1], k = nearest.shape[2];
  require<ShapeError>(points.shape[0] == centres.shape[0] && 0 < k && k <= n && nearest.shape == Shape{points.shape[0], s, k},
                      "nearest_points: cannot choose ", nearest.shape, " neighbours, got ", points.shape, " and centres ", centres.shape);
  parallel_for(points.shape[0] * s, grain_for(n * 8), [&](int64_t begin, int64_t end) {
    using Candidate = std::pair<float, int32_t>;  // squared distance, index
    ScratchScope scratch;
    Candidate* order = scratch.take<Candidate>(n);
    for (int64_t c = begin; c < end; ++c) {
      const float* xyz = points.as<float>() + c / s * n * 3;
      for (int64_t i = 0; i < n; ++i) order[i] = {square_distance(xyz + 3 * i, centres.as<float>() + 3 * c), static_cast<int32_t>(i)};
      std::partial_sort(order, order + k, order + n);
      for (int64_t j = 0; j < k; ++j) nearest.as<int32_t>()[c * k + j] = order[j].second;
    }
  });
}

void make_flat_rows(const View& indices, int64_t points) {
  const int64_t count = indices.shape.count(), per_cloud = indices.shape.count(1, indices.shape.rank());
  for (int64_t i = 0; i < count; ++i) indices.as<int32_t>()[i] += static_cast<int32_t>(i / per_cloud * points);
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

Var SampleAndGroup::operator()(const View& coordinates, Var features) {
  require_points("sample_and_group", coordinates);
  const int64_t points = coordinates.shape[1];
  require<ShapeError>(centres_ <= points && neighbours_ <= points, "sample_and_group: needs clouds of at least ", std::max(centres_, neighbours_),
                      " points for ", centres_, " centres of ", neighbours_, " neighbours, got ", coordinates.shape);
  batch_ = coordinates.shape[0];
  if (!coordinates_ || coordinates_.shape()[0] < batch_) {
    coordinates_ = Tensor({batch_, centres_, 3});
    centre_rows_ = Tensor({batch_, centres_}, DType::i32);
    neighbour_rows_ = Tensor({batch_, centres_, neighbours_}, DType::i32);
  }
  const Tensor chosen = centre_rows_.rows(0, batch_), nearest = neighbour_rows_.rows(0, batch_);
  farthest_points(coordinates, chosen.view());
  make_flat_rows(chosen.view(), points);
  const float* xyz = coordinates.as<float>();
  for (int64_t i = 0; i < chosen.count(); ++i) std::copy_n(xyz + 3 * chosen.view().as<int32_t>()[i], 3, centre_coordinates().as<float>() + 3 * i);
  nearest_points(coordinates, centre_coordinates(), nearest.view());
  make_flat_rows(nearest.view(), points);
  Tape& tape = *features.tape;
  return group_features(features, tape.reshape(tape.leaf(chosen), {chosen.count()}), tape.reshape(tape.leaf(nearest), {nearest.count()}));
}

LocalOperation::LocalOperation(Module& parent, const std::string& name, int64_t in, int64_t out)
    : Module(parent, name), layer1_(*this, "conv1", "bn1", in, out), layer2_(*this, "conv2", "bn2", out, out) {}

Var LocalOperation::operator()(Var x) { return max(layer2_(layer1_(x)), {2}); }

OffsetAttention::OffsetAttention(Module& parent, const std::string& name, int64_t dim, std::optional<SinkhornOptions> sinkhorn)
    : Module(parent, name),
      query_(*this, "q_conv", dim, dim / 4, {.bias = false}),
      value_(*this, "v_conv", dim, dim),
      output_(*this, "trans_conv", dim, dim),
      norm_(*this, "after_norm", dim) {
  if (sinkhorn) heads = AttentionHeads{.count = 1, .scale = 1, .sinkhorn = *sinkhorn};
}

Var OffsetAttention::operator()(Var x) {
  const Var q = query_(x), v = value_(x);  // (B, N, dim / 4), (B, N, dim)
  Var attended;
  if (heads) {
    attended = (*heads)(q, q, v);
  } else {
    const Var rows = softmax(matmul(q, q, false, true));  // (B, N, N)
    const Var plan = div(rows, scale_shift(sum(rows, {1}, true), 1, 1e-9));
    attended = matmul(plan, v, true);  // point j gathers by column j
  }
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

std::vector<AttentionHeads*> PointTrunk::attentions() {
  std::vector<AttentionHeads*> all;
  for (OffsetAttention* a : {&attention1_, &attention2_, &attention3_, &attention4_})
    if (a->heads) all.push_back(&*a->heads);
  return all;
}

}  // namespace sinkgrad
