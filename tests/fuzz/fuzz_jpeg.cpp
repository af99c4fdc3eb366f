// Photographs: JPEG files, decoded and resized.
#include "datasets/jpeg.h"
#include "datasets/resize.h"
#include "fuzz/fuzz.h"
#include "tiny_data.h"

namespace sinkgrad::fuzz {

std::vector<std::string> seeds() {
  return {tiny::jpeg(17, 9, {200, 30, 20}), tiny::jpeg(8, 8, {90}, JCS_GRAYSCALE), tiny::jpeg(9, 9, {1, 2, 3, 4}, JCS_CMYK),
          tiny::jpeg(33, 20, {10, 200, 30}, JCS_RGB, /*progressive=*/true)};
}

void feed(std::string_view input) {
  const Image image = decode_jpeg(input, "input", /*max_pixels=*/1 << 20).image;
  std::vector<uint8_t> small(3 * 16 * 16);
  resize_bilinear(image.pixels.data(), image.width, {0, 0, image.height, image.width}, small.data(), 16, 16);
}

}  // namespace sinkgrad::fuzz
