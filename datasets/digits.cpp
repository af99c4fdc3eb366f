// A digit is a list of quadratic Bezier curves in the unit square, x to the right and y down. A pixel is dark by its distance from them.
#include "datasets/digits.h"

#include <algorithm>
#include <array>

namespace sinkgrad {
namespace {

constexpr int kSide = 28, kPieces = 6, kMaxCurves = 9;  // pixels; straight pieces of a curve; curves of a digit
constexpr double kMean = 0.1307, kDeviation = 0.3081;

struct Point {
  double x, y;
};
Point operator+(Point a, Point b) { return {a.x + b.x, a.y + b.y}; }
Point operator-(Point a, Point b) { return {a.x - b.x, a.y - b.y}; }
Point operator*(double s, Point a) { return {s * a.x, s * a.y}; }
double dot(Point a, Point b) { return a.x * b.x + a.y * b.y; }

/// From a to c, bent towards b.
struct Curve {
  Point a, b, c;
};
constexpr Curve line(Point a, Point c) { return {a, {(a.x + c.x) / 2, (a.y + c.y) / 2}, c}; }

using Strokes = std::vector<Curve>;

const std::array<Strokes, 10>& digits() {
  static const std::array<Strokes, 10> list = {{
      {{{.5, .1}, {.82, .1}, {.82, .5}}, {{.82, .5}, {.82, .9}, {.5, .9}}, {{.5, .9}, {.18, .9}, {.18, .5}}, {{.18, .5}, {.18, .1}, {.5, .1}}},
      {line({.35, .26}, {.55, .1}), line({.55, .1}, {.55, .9})},
      {{{.2, .3}, {.25, .08}, {.5, .1}}, {{.5, .1}, {.85, .12}, {.75, .4}}, {{.75, .4}, {.6, .65}, {.2, .9}}, line({.2, .9}, {.82, .9})},
      {{{.22, .18}, {.75, -.02}, {.75, .3}},
       {{.75, .3}, {.75, .48}, {.42, .48}},
       {{.42, .48}, {.82, .48}, {.8, .7}},
       {{.8, .7}, {.75, .98}, {.2, .85}}},
      {line({.62, .1}, {.62, .9}), line({.62, .1}, {.18, .65}), line({.18, .65}, {.85, .65})},
      {line({.78, .1}, {.28, .1}), line({.28, .1}, {.24, .45}), {{.24, .45}, {.8, .35}, {.78, .65}}, {{.78, .65}, {.75, .98}, {.2, .85}}},
      {{{.7, .1}, {.25, .25}, {.22, .65}},
       {{.22, .65}, {.25, .92}, {.5, .9}},
       {{.5, .9}, {.8, .88}, {.78, .65}},
       {{.78, .65}, {.7, .42}, {.45, .47}},
       {{.45, .47}, {.28, .5}, {.22, .65}}},
      {line({.18, .1}, {.82, .1}), {{.82, .1}, {.5, .5}, {.42, .9}}},
      {{{.5, .48}, {.2, .4}, {.25, .25}},
       {{.25, .25}, {.3, .1}, {.5, .1}},
       {{.5, .1}, {.75, .1}, {.75, .27}},
       {{.75, .27}, {.75, .42}, {.5, .48}},
       {{.5, .48}, {.2, .55}, {.2, .72}},
       {{.2, .72}, {.22, .9}, {.5, .9}},
       {{.5, .9}, {.8, .9}, {.8, .72}},
       {{.8, .72}, {.78, .55}, {.5, .48}}},
      {{{.75, .35}, {.7, .55}, {.48, .55}},
       {{.48, .55}, {.22, .52}, {.24, .32}},
       {{.24, .32}, {.28, .1}, {.5, .1}},
       {{.5, .1}, {.78, .12}, {.75, .35}},
       {{.75, .35}, {.75, .7}, {.6, .9}}},
  }};
  return list;
}

double squared_distance(Point p, Point from, Point to) {
  const Point along = to - from, offset = p - from;
  const double length = dot(along, along), t = length > 0 ? std::clamp(dot(offset, along) / length, 0.0, 1.0) : 0;
  const Point d = offset - t * along;
  return dot(d, d);
}

}  // namespace

SyntheticDigits::SyntheticDigits(const std::string& split, int64_t size, const Options& options)
    : DrawnImages("digits", split, size, {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}, options) {}

Shape SyntheticDigits::item_shape() const { return {1, kSide, kSide}; }

void SyntheticDigits::draw(int32_t label, RandomStream random, float* pixels) const {
  // A matrix near the identity slants, turns and stretches; the digit fills about 20 of 28 pixels, somewhere near the middle.
  const double size = random.uniform(16, 21), xx = random.uniform(.75, 1.1), xy = random.uniform(-.3, .3), yx = random.uniform(-.15, .15);
  const Point middle{kSide / 2.0 + random.uniform(-2.5, 2.5), kSide / 2.0 + random.uniform(-2.5, 2.5)};
  const double pen = random.uniform(.9, 1.9), soft = random.uniform(.7, 1.3), noise = random.uniform(0, .12);  // half the width of the line; its edge
  std::array<Point, kMaxCurves*(kPieces + 1)> path;
  const Strokes& strokes = digits()[static_cast<size_t>(label)];
  const auto place = [&](Point p) {
    const Point q{p.x - .5, p.y - .5};
    return middle + size * Point{xx * q.x + xy * q.y, yx * q.x + q.y};
  };
  Point start{}, shaken_start{};  // curves that meet stay together
  for (size_t k = 0; k < strokes.size(); ++k) {
    const auto shaken = [&](Point p) { return p + Point{random.uniform(-.05, .05), random.uniform(-.05, .05)}; };
    const bool joined = k > 0 && strokes[k].a.x == start.x && strokes[k].a.y == start.y;
    const Point a = joined ? shaken_start : shaken(strokes[k].a), b = shaken(strokes[k].b), c = shaken(strokes[k].c);
    start = strokes[k].c;
    shaken_start = c;
    for (size_t i = 0; i <= kPieces; ++i) {
      const double t = static_cast<double>(i) / kPieces;
      path[k * (kPieces + 1) + i] = place((1 - t) * (1 - t) * a + 2 * t * (1 - t) * b + t * t * c);
    }
  }
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) {
      const Point p{x + .5, y + .5};
      double nearest = 1e9;
      for (size_t k = 0; k < strokes.size(); ++k)
        for (size_t i = 0; i < kPieces; ++i)
          nearest = std::min(nearest, squared_distance(p, path[k * (kPieces + 1) + i], path[k * (kPieces + 1) + i + 1]));
      const double ink = std::clamp((pen - std::sqrt(nearest)) / soft + .5, 0.0, 1.0);
      const double value = std::clamp(ink + noise * random.uniform(-1, 1), 0.0, 1.0);
      *pixels++ = static_cast<float>((value - kMean) / kDeviation);
    }
}

}  // namespace sinkgrad
