// A silhouette is a test whether a place belongs to it, in a frame where it fills the square from -1 to 1; y points down.
#include "datasets/silhouettes.h"

#include <algorithm>
#include <array>

namespace sinkgrad {
namespace {

double length(double x, double y) { return std::sqrt(x * x + y * y); }

struct Silhouette {
  const char* name;
  bool (*covers)(double x, double y);
};
const std::array kSilhouettes = {
    Silhouette{"disc", [](double x, double y) { return length(x, y) < .9; }},
    Silhouette{"ring", [](double x, double y) { return length(x, y) < .95 && length(x, y) > .55; }},
    Silhouette{"square", [](double x, double y) { return std::max(std::abs(x), std::abs(y)) < .8; }},
    Silhouette{"triangle", [](double x, double y) { return y < .8 && y > 1.8 * std::abs(x) - .95; }},
    Silhouette{"diamond", [](double x, double y) { return std::abs(x) + std::abs(y) < 1; }},
    Silhouette{"cross", [](double x, double y) { return std::min(std::abs(x), std::abs(y)) < .28 && std::max(std::abs(x), std::abs(y)) < .95; }},
    Silhouette{"star", [](double x, double y) { return std::sqrt(std::abs(x)) + std::sqrt(std::abs(y)) < 1.05; }},
    Silhouette{"crescent", [](double x, double y) { return length(x, y) < .95 && length(x - .45, y) > .75; }},
};

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (const Silhouette& s : kSilhouettes) list.emplace_back(s.name);
  return list;
}

}  // namespace

SyntheticSilhouettes::SyntheticSilhouettes(const std::string& split, int64_t size, int64_t side, const Options& options)
    : DrawnImages("silhouettes", split, size, names(), options), side_(side) {
  require<InputError>(side >= 8 && side <= 1024, "silhouettes: size must be 8 to 1024 pixels, got ", side);
}

void SyntheticSilhouettes::draw(int32_t label, RandomStream random, float* pixels) const {
  std::array<double, 3> dark, light;
  for (double& channel : dark) channel = random.uniform(0, .4);
  for (double& channel : light) channel = random.uniform(.5, 1);
  const auto side = static_cast<double>(side_);
  const double half = side * random.uniform(.28, .42), noise = random.uniform(.02, .15);
  const double x0 = side * random.uniform(.4, .6), y0 = side * random.uniform(.4, .6);
  // The inverse of a matrix near the identity that turns and stretches.
  const double xx = random.uniform(.85, 1.15), xy = random.uniform(-.2, .2), yx = random.uniform(-.2, .2), yy = random.uniform(.85, 1.15);
  const int64_t count = side_ * side_;
  for (int64_t row = 0; row < side_; ++row)
    for (int64_t column = 0; column < side_; ++column) {
      double share = 0;  // of the pixel, from four places in it
      for (const double v : {.25, .75})
        for (const double u : {.25, .75}) {
          const double x = (static_cast<double>(column) + u - x0) / half, y = (static_cast<double>(row) + v - y0) / half;
          share += kSilhouettes[static_cast<size_t>(label)].covers(xx * x + xy * y, yx * x + yy * y) ? .25 : 0;
        }
      for (size_t c = 0; c < 3; ++c) {
        const double value = (1 - share) * dark[c] + share * light[c] + noise * random.uniform(-1, 1);
        pixels[static_cast<int64_t>(c) * count + row * side_ + column] = static_cast<float>(std::clamp(value, 0.0, 1.0));
      }
    }
}

}  // namespace sinkgrad
