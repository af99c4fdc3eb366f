// Resizing of 8-bit RGB images as Pillow does it: bilinear (a triangle filter), widened when the image shrinks, rounded to 8 bits after
// each of the two passes.
#pragma once
#include <cstdint>

namespace sinkgrad {

/// Part of an image, in pixels.
struct CropBox {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

/// Resizes the part `box` of an image whose rows are `row_pixels` long to height x width. Pixels outside the box play no role.
void resize_bilinear(const uint8_t* image, int64_t row_pixels, const CropBox& box, uint8_t* out, int64_t height, int64_t width);

}  // namespace sinkgrad
