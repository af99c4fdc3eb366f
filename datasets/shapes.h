// Synthetic classification of point clouds on twelve surfaces: a task to train on with no data to fetch.
// An item uses only Philox words, + - * / and square roots, so it has the same bits on every IEEE machine.
#pragma once
#include "datasets/dataset.h"

namespace sinkgrad {

/// Clouds f32 (points, 3) of one of twelve surfaces, sampled uniformly by area, in random proportions and pose, with noise. Each cloud is
/// standardised by one mean and one standard deviation over all points and coordinates, as the paper's ModelNet40 pipeline does.
/// Item i has class i mod 12.
class SyntheticShapes : public Dataset {
 public:
  /// How a surface is placed: as it is, turned about z and stretched along its axes, or turned anyhow and stretched.
  enum class Pose : uint8_t { fixed, upright, any };
  struct Options {
    int64_t points = 256;
    double noise = 0.02;  ///< standard deviation of each coordinate before standardisation; the surfaces measure about 2 across
    Pose pose = Pose::any;
    bool augment = false;  ///< in training, every epoch draws new clouds of the same classes
    uint64_t seed = 0;
  };
  /// `split` ("train" or "test") names the random stream: splits share no cloud.
  SyntheticShapes(const std::string& split, int64_t size, const Options& options);

  int64_t size() const override { return size_; }
  Shape item_shape() const override { return {options_.points, 3}; }
  const std::vector<std::string>& class_names() const override;
  std::string description() const override;
  void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const override;
  std::vector<int64_t> label_histogram() const override;

 private:
  std::string split_;
  int64_t size_;
  Options options_;
};

}  // namespace sinkgrad
