// Sampling and grouping run on the CPU, one cloud per thread, ahead of the step that needs them.
#include "datasets/point_groups.h"

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

void write_groups(const View& points, const PointGroups& groups, const View& rows) {
  require_points("point groups", points);
  const int64_t batch = points.shape[0], n = points.shape[1];
  require<ShapeError>(groups.centres <= n && groups.neighbours <= n, "point groups: needs clouds of at least ",
                      std::max(groups.centres, groups.neighbours), " points for ", groups.centres, " centres of ", groups.neighbours,
                      " neighbours, got ", points.shape);
  ScratchScope scratch;
  View from = points;  // the points of the level at hand
  for (int i = 0; i < PointGroups::kLevels; ++i) {
    const View centres = groups.centre_rows(rows, batch, i), neighbours = groups.neighbour_rows(rows, batch, i);
    const int64_t count = centres.shape[1], all = from.shape[1];
    farthest_points(from, centres);
    const View chosen{scratch.take<float>(batch * count * 3), {batch, count, 3}, DType::f32};
    for (int64_t c = 0; c < batch * count; ++c)
      std::copy_n(from.as<float>() + 3 * (c / count * all + centres.as<int32_t>()[c]), 3, chosen.as<float>() + 3 * c);
    nearest_points(from, chosen, neighbours);
    make_flat_rows(centres, all);
    make_flat_rows(neighbours, all);
    from = chosen;
  }
}

View PointGroups::centre_rows(const View& rows, int64_t batch, int level) const { return part(rows, batch, level, 0, {batch, centres >> level}); }

View PointGroups::neighbour_rows(const View& rows, int64_t batch, int level) const {
  return part(rows, batch, level, centres >> level, {batch, centres >> level, neighbours});
}

View PointGroups::part(const View& rows, int64_t batch, int level, int64_t skip, const Shape& shape) const {
  require<ShapeError>(rows && rows.dtype == DType::i32 && rows.shape == Shape{batch * rows_per_cloud()}, "point groups: rows must be i32 (",
                      batch * rows_per_cloud(), "), those of ", batch, " clouds, got ", rows ? cat(name_of(rows.dtype), " ", rows.shape) : "none");
  int64_t begin = batch * skip;
  for (int before = 0; before < level; ++before) begin += batch * (centres >> before) * (1 + neighbours);
  return rows.rows(begin, begin + shape.count()).reshaped(shape);
}

Batch GroupedClouds::batch(const BatchItems& items, std::optional<uint64_t> epoch, BatchMemory& memory) const {
  Batch batch = clouds_->batch(items, epoch, memory);
  batch.context = memory.context({static_cast<int64_t>(items.wanted.size()) * groups_.rows_per_cloud()}, DType::i32);
  write_groups(batch.inputs.view(), groups_, batch.context.view());
  return batch;
}

}  // namespace sinkgrad
