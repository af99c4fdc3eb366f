// Two passes of weighted sums in fixed point, columns first: the same bits on every machine.
#include "datasets/resize.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"

namespace sinkgrad {
namespace {

constexpr int kFraction = 22;  // bits behind the point of a weight: 8 more and a sign still fit 32 bits

/// For each output place, the input places that it is made of and their weights.
struct Weights {
  int64_t most;  // input places per output place, at most
  const int64_t* first;
  const int64_t* count;
  const int32_t* value;  // `most` per output place
};

Weights make_weights(int64_t in, int64_t out, ScratchScope& scratch) {
  const double scale = static_cast<double>(in) / static_cast<double>(out), reach = std::max(scale, 1.0);
  const auto most = static_cast<int64_t>(std::ceil(reach)) * 2 + 1;
  auto* first = scratch.take<int64_t>(out);
  auto* count = scratch.take<int64_t>(out);
  auto* value = scratch.take<int32_t>(out * most);
  auto* real = scratch.take<double>(most);
  for (int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    first[i] = std::max<int64_t>(0, static_cast<int64_t>(centre - reach + 0.5));
    count[i] = std::min<int64_t>(in, static_cast<int64_t>(centre + reach + 0.5)) - first[i];
    double total = 0;
    for (int64_t k = 0; k < count[i]; ++k) {
      const double distance = std::abs((static_cast<double>(first[i] + k) - centre + 0.5) / reach);
      total += real[k] = std::max(0.0, 1 - distance);
    }
    for (int64_t k = 0; k < count[i]; ++k) value[i * most + k] = static_cast<int32_t>(std::floor(0.5 + real[k] / total * (1 << kFraction)));
  }
  return {most, first, count, value};
}

constexpr int32_t kHalf = 1 << (kFraction - 1);

uint8_t rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kFraction, 0, 255)); }

}  // namespace

void resize_bilinear(const uint8_t* image, int64_t row_pixels, const CropBox& box, uint8_t* out, int64_t height, int64_t width) {
  ScratchScope scratch;
  const Weights across = make_weights(box.width, width, scratch), down = make_weights(box.height, height, scratch);
  auto* narrow = scratch.take<uint8_t>(box.height * width * 3);  // (box.height, width, 3)
  for (int64_t y = 0; y < box.height; ++y)
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* in = image + ((box.top + y) * row_pixels + box.left + across.first[x]) * 3;
      int32_t red = kHalf, green = kHalf, blue = kHalf;
      for (int64_t k = 0; k < across.count[x]; ++k, in += 3) {
        const int32_t weight = across.value[x * across.most + k];
        red += weight * in[0], green += weight * in[1], blue += weight * in[2];
      }
      uint8_t* to = narrow + (y * width + x) * 3;
      to[0] = rounded(red), to[1] = rounded(green), to[2] = rounded(blue);
    }
  auto* sums = scratch.take<int32_t>(width * 3);
  for (int64_t y = 0; y < height; ++y) {
    std::fill_n(sums, width * 3, kHalf);
    for (int64_t k = 0; k < down.count[y]; ++k) {
      const uint8_t* row = narrow + (down.first[y] + k) * width * 3;
      const int32_t weight = down.value[y * down.most + k];
      for (int64_t i = 0; i < width * 3; ++i) sums[i] += weight * row[i];
    }
    for (int64_t i = 0; i < width * 3; ++i) out[y * width * 3 + i] = rounded(sums[i]);
  }
}

}  // namespace sinkgrad
