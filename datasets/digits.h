// Synthetic handwriting: the digits 0 to 9 drawn by a few strokes of a pen, in the format of MNIST.
#pragma once
#include "datasets/drawing.h"

namespace sinkgrad {

/// Items (1, 28, 28): a digit whose strokes, slant, size, place and pen vary, with noise; pixels 0..1 scaled as MNIST's are, to
/// (pixel - 0.1307) / 0.3081.
class SyntheticDigits : public DrawnImages {
 public:
  SyntheticDigits(const std::string& split, int64_t size, const Options& options);
  Shape item_shape() const override;

 private:
  void draw(int32_t label, RandomStream random, float* pixels) const override;
};

}  // namespace sinkgrad
