// Synthetic colour images of eight silhouettes: a task for the image model with no data to fetch.
#pragma once
#include "datasets/drawing.h"

namespace sinkgrad {

/// Items (3, side, side), values 0..1: a disc, ring, square, triangle, diamond, cross, star or crescent of a light colour on a dark one,
/// at a random size and place, a little turned and stretched, with noise.
class SyntheticSilhouettes : public DrawnImages {
 public:
  SyntheticSilhouettes(const std::string& split, int64_t size, int64_t side, const Options& options);
  Shape item_shape() const override { return {3, side_, side_}; }

 private:
  void draw(int32_t label, RandomStream random, float* pixels) const override;
  int64_t side_;
};

}  // namespace sinkgrad
