// The neighbourhoods that a Point Cloud Transformer works on (SPEC 2.2), found where batches are made: centres by farthest points, the nearest
// neighbours of each, and the same again among the centres. They depend on coordinates alone and have no gradient.
#pragma once
#include <memory>

#include "datasets/dataset.h"

namespace sinkgrad {

/// Writes i32 chosen (B, count): indices of points (B, N, 3), each the farthest from those before it, starting at 0. As in the CUDA code
/// that PCT uses, points with squared norm <= 1e-3 are never chosen after the first.
void farthest_points(const View& points, const View& chosen);
/// Writes i32 nearest (B, S, k): the k points nearest to each centre (B, S, 3), nearest first, equal distances by index.
void nearest_points(const View& points, const View& centres, const View& nearest);
/// Adds b N to the indices (B, K...) of cloud b into N points: they become rows of a (B N, ...) matrix.
void make_flat_rows(const View& indices, int64_t points);
/// How many there are at each level, and where a batch's lie in one flat i32 tensor: level by level the rows of the centres (B S), then those of
/// their neighbours (B S k). Rows count the points of all clouds of the batch at the level before.
struct PointGroups {
  static constexpr int kLevels = 2;
  int64_t centres = 0;     ///< of the first level; the second has half as many
  int64_t neighbours = 0;  ///< of each centre, itself included

  int64_t rows_per_cloud() const { return (centres + centres / 2) * (1 + neighbours); }
  /// (B, S) and (B, S, k). ShapeError when `rows` are not those of so many clouds.
  View centre_rows(const View& rows, int64_t batch, int level) const;
  View neighbour_rows(const View& rows, int64_t batch, int level) const;

 private:
  View part(const View& rows, int64_t batch, int level, int64_t skip, const Shape& shape) const;
};

/// Writes the rows (B rows_per_cloud) of points f32 (B, N, 3) on the CPU.
void write_groups(const View& points, const PointGroups& groups, const View& rows);

/// Point clouds whose batches carry the rows of their groups as context.
class GroupedClouds : public DataSource {
 public:
  GroupedClouds(std::unique_ptr<DataSource> clouds, const PointGroups& groups) : clouds_(std::move(clouds)), groups_(groups) {}
  int64_t size() const override { return clouds_->size(); }
  Shape item_shape() const override { return clouds_->item_shape(); }
  const std::vector<std::string>& class_names() const override { return clouds_->class_names(); }
  std::string description() const override { return clouds_->description(); }
  std::vector<int64_t> label_histogram() const override { return clouds_->label_histogram(); }
  std::map<std::string, std::string> files() const override { return clouds_->files(); }
  std::unique_ptr<BatchPlan> plan(int64_t batch_size, Purpose purpose, uint64_t seed, bool drop_last) const override {
    return clouds_->plan(batch_size, purpose, seed, drop_last);
  }
  Batch batch(const BatchItems& items, std::optional<uint64_t> epoch, BatchMemory& memory) const override;

 private:
  std::unique_ptr<DataSource> clouds_;
  PointGroups groups_;
};

}  // namespace sinkgrad
