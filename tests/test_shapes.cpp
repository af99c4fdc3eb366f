// The synthetic point clouds: the same bits everywhere, each item on its own, standardised, uniform by area, and classes that differ.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "datasets/registry.h"
#include "datasets/shapes.h"

using namespace sinkgrad;

namespace {

using Cloud = std::vector<float>;

Cloud cloud_of(const Dataset& dataset, uint32_t index, std::optional<uint64_t> epoch = {}) {
  Cloud cloud(static_cast<size_t>(dataset.item_shape().count()));
  int32_t label = -1;
  dataset.load(std::span(&index, 1), epoch, cloud.data(), &label);
  REQUIRE(label == static_cast<int32_t>(index) % dataset.classes());
  return cloud;
}

SyntheticShapes::Options options_of(int64_t points, uint64_t seed = 0) {
  SyntheticShapes::Options options;
  options.points = points;
  options.seed = seed;
  return options;
}

uint64_t hash_of(const Cloud& cloud) {
  uint64_t h = 0xcbf29ce484222325;
  for (float x : cloud) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    h = (h ^ bits) * 0x100000001b3;
  }
  return h;
}

double distance(const Cloud& cloud, size_t i, size_t j) {
  double sum = 0;
  for (size_t k = 0; k < 3; ++k) sum += std::pow(cloud[3 * i + k] - cloud[3 * j + k], 2);
  return std::sqrt(sum);
}

/// Cumulative histogram of the distances between points (the D2 shape distribution of Osada et al. 2002), the same in any pose.
std::vector<double> distance_distribution(const Cloud& cloud) {
  std::vector<double> bins(40);
  const size_t points = cloud.size() / 3;
  for (size_t i = 0; i < points; ++i)
    for (size_t j = 0; j < i; ++j) bins[std::min<size_t>(bins.size() - 1, static_cast<size_t>(distance(cloud, i, j) * 7))] += 1;
  for (size_t i = 1; i < bins.size(); ++i) bins[i] += bins[i - 1];
  for (double& b : bins) b /= bins.back();
  return bins;
}

}  // namespace

TEST_CASE("a cloud has known bits, whatever the machine") {
  const SyntheticShapes shapes("train", 12, options_of(64, 7));
  uint64_t all = 0;
  for (uint32_t i = 0; i < 12; ++i) all = all * 31 + hash_of(cloud_of(shapes, i));
  REQUIRE(all == 0xf965c0f14cbea058);
}

TEST_CASE("an item depends on seed, split and index alone") {
  const SyntheticShapes small("train", 20, options_of(32)), large("train", 5000, options_of(32)), test("test", 20, options_of(32));
  REQUIRE(cloud_of(small, 13) == cloud_of(large, 13));
  REQUIRE(cloud_of(small, 1) != cloud_of(small, 13));
  REQUIRE(cloud_of(small, 13) != cloud_of(test, 13));
  REQUIRE(cloud_of(small, 13) != cloud_of(SyntheticShapes("train", 20, options_of(32, 1)), 13));
  REQUIRE(cloud_of(small, 13) == cloud_of(small, 13, 5));

  const std::vector<uint32_t> indices = {19, 3, 3, 0, 7, 12, 5};
  Cloud batch(indices.size() * 96), again(batch.size());
  std::vector<int32_t> labels(indices.size());
  const int before = threads();
  set_threads(1);
  small.load(indices, {}, batch.data(), labels.data());
  set_threads(3);
  small.load(indices, {}, again.data(), labels.data());
  set_threads(before);
  REQUIRE(batch == again);
  REQUIRE(labels == std::vector<int32_t>{7, 3, 3, 0, 7, 0, 5});
  for (size_t i = 0; i < indices.size(); ++i)
    REQUIRE(Cloud(batch.begin() + static_cast<long>(96 * i), batch.begin() + static_cast<long>(96 * (i + 1))) == cloud_of(small, indices[i]));
}

TEST_CASE("augmentation draws another cloud each epoch, and none for evaluation") {
  SyntheticShapes::Options options = options_of(32);
  const SyntheticShapes plain("train", 20, options);
  options.augment = true;
  const SyntheticShapes augmented("train", 20, options);
  REQUIRE(cloud_of(augmented, 4) == cloud_of(plain, 4));
  REQUIRE(cloud_of(augmented, 4, 0) != cloud_of(plain, 4));
  REQUIRE(cloud_of(augmented, 4, 0) != cloud_of(augmented, 4, 1));
  REQUIRE(cloud_of(augmented, 4, 1) == cloud_of(augmented, 4, 1));
}

TEST_CASE("clouds are standardised by one mean and one deviation") {
  const SyntheticShapes shapes("train", 36, options_of(200));
  for (uint32_t i = 0; i < 36; ++i) {
    double sum = 0, squares = 0;
    const Cloud cloud = cloud_of(shapes, i);
    for (float x : cloud) sum += x, squares += static_cast<double>(x) * x;
    INFO(shapes.class_names()[i % 12]);
    REQUIRE(sum / 600 == Approx(0).margin(1e-6));
    REQUIRE(squares / 600 == Approx(1).epsilon(1e-6));
  }
}

namespace {

constexpr int kPoints = 40000;

/// A surface without noise in its own frame.
struct Frame {
  std::vector<std::array<double, 3>> points;
  std::array<double, 3> low, high;
  double extent(size_t axis) const { return high[axis] - low[axis]; }
  /// Share of the points that satisfy f, or mean of f.
  template <class F>
  double mean(F f) const {
    double sum = 0;
    for (const auto& p : points) sum += static_cast<double>(f(p[0], p[1], p[2]));
    return sum / static_cast<double>(points.size());
  }
};

/// Undoes standardisation: scaled to the known extent along `axis`, the middle of the extents at the origin.
Frame frame_of(uint32_t label, size_t axis, double extent) {
  SyntheticShapes::Options options = options_of(kPoints);
  options.noise = 0;
  options.pose = SyntheticShapes::Pose::fixed;
  const Cloud cloud = cloud_of(SyntheticShapes("test", 12, options), label);
  Frame frame;
  for (size_t k = 0; k < 3; ++k) {
    frame.low[k] = 1e9, frame.high[k] = -1e9;
    for (size_t i = k; i < cloud.size(); i += 3) {
      frame.low[k] = std::min<double>(frame.low[k], cloud[i]);
      frame.high[k] = std::max<double>(frame.high[k], cloud[i]);
    }
  }
  const double scale = extent / frame.extent(axis);
  std::array<double, 3> middle;
  for (size_t k = 0; k < 3; ++k) {
    middle[k] = (frame.low[k] + frame.high[k]) / 2;
    frame.low[k] = (frame.low[k] - middle[k]) * scale;
    frame.high[k] = -frame.low[k];
  }
  for (size_t i = 0; i < cloud.size(); i += 3) {
    std::array<double, 3> p;
    for (size_t k = 0; k < 3; ++k) p[k] = (cloud[i + k] - middle[k]) * scale;
    frame.points.push_back(p);
  }
  return frame;
}

/// Mean of f over [a, b] x [c, d] with the given density, by the midpoint rule.
template <class F, class Density>
double quadrature(double a, double b, double c, double d, F f, Density density) {
  double sum = 0, total = 0;
  for (int i = 0; i < 400; ++i)
    for (int j = 0; j < 400; ++j) {
      const double u = a + (b - a) * (i + 0.5) / 400, v = c + (d - c) * (j + 0.5) / 400, weight = density(u, v);
      sum += weight * f(u, v), total += weight;
    }
  return sum / total;
}

double hypotenuse(double x, double y) { return std::sqrt(x * x + y * y); }

}  // namespace

TEST_CASE("points are uniform by area: closed surfaces of known area") {
  const double tolerance = 0.012;
  {
    const Frame sphere = frame_of(0, 0, 2);
    REQUIRE(sphere.mean([](double x, double y, double z) { return std::abs(x * x + y * y + z * z - 1) < 0.01; }) == 1);
    for (size_t k = 0; k < 3; ++k)
      REQUIRE(sphere.mean([&](double x, double y, double z) { return std::abs(std::array{x, y, z}[k]) < 0.5; }) == Approx(0.5).margin(tolerance));
  }
  {
    const Frame e = frame_of(1, 0, 2);
    const double b = e.high[1], c = e.high[2];
    REQUIRE(e.mean([&](double x, double y, double z) { return std::abs(x * x + y * y / (b * b) + z * z / (c * c) - 1) < 0.02; }) == 1);
    const auto element = [&](double z, double u) {
      const double r = std::sqrt(1 - z * z), x = r * std::cos(u), y = r * std::sin(u);
      return std::sqrt(std::pow(b * c * x, 2) + std::pow(c * y, 2) + std::pow(b * z, 2));
    };
    const double expected = quadrature(
        -1, 1, 0, 2 * M_PI, [](double z, double u) { return (1 - z * z) * std::pow(std::cos(u), 2); }, element);
    REQUIRE(std::abs(expected - 1.0 / 3) > 0.02);  // of uniform directions
    REQUIRE(e.mean([](double x, double, double) { return x * x; }) == Approx(expected).margin(0.008));
  }
  {
    const Frame cube = frame_of(2, 0, 2);
    for (size_t k = 0; k < 3; ++k)
      for (const double side : {-1, 1})
        REQUIRE(cube.mean([&](double x, double y, double z) {
          return std::abs(std::array{x, y, z}[k] - side) < 1e-3;
        }) == Approx(1.0 / 6).margin(tolerance));
    REQUIRE(cube.mean([](double x, double y, double z) { return x * x + y * y + z * z; }) == Approx(5.0 / 3).margin(tolerance));
  }
  {
    const Frame cylinder = frame_of(3, 0, 2);
    const double height = cylinder.extent(2);
    REQUIRE(cylinder.mean([&](double, double, double z) { return std::abs(z) > height / 2 - 1e-4; }) == Approx(1 / (height + 1)).margin(tolerance));
    REQUIRE(cylinder.mean([&](double x, double y, double z) { return std::abs(z) > height / 2 - 1e-4 && hypotenuse(x, y) < 0.5; }) ==
            Approx(0.25 / (height + 1)).margin(tolerance));
  }
  {
    const Frame cone = frame_of(4, 0, 2);
    const double height = cone.extent(2), slant = hypotenuse(1, height);
    const auto on_base = [&](double, double, double z) { return z < 1e-4 - height / 2; };
    REQUIRE(cone.mean(on_base) == Approx(1 / (1 + slant)).margin(tolerance));
    REQUIRE(cone.mean([&](double, double, double z) { return z > 0; }) == Approx(0.25 * slant / (1 + slant)).margin(tolerance));
    REQUIRE(cone.mean([&](double x, double y, double z) { return on_base(x, y, z) || std::abs(hypotenuse(x, y) - (0.5 - z / height)) < 0.02; }) == 1);
  }
  {
    const Frame pyramid = frame_of(5, 0, 2);
    const double height = pyramid.extent(2), slant = hypotenuse(1, height);
    REQUIRE(pyramid.mean([&](double, double, double z) { return z < 1e-4 - height / 2; }) == Approx(1 / (1 + slant)).margin(tolerance));
    REQUIRE(pyramid.mean([&](double, double, double z) { return z > 0; }) == Approx(0.25 * slant / (1 + slant)).margin(tolerance));
    REQUIRE(pyramid.mean([&](double x, double y, double z) { return z > 0 && x > std::abs(y); }) ==
            Approx(0.0625 * slant / (1 + slant)).margin(tolerance));
  }
  {
    const Frame torus = frame_of(6, 0, 2);
    const double tube = torus.high[2], ring = 1 - tube;
    REQUIRE(torus.mean([&](double x, double y, double z) { return std::abs(hypotenuse(hypotenuse(x, y) - ring, z) - tube) < 0.01; }) == 1);
    REQUIRE(torus.mean([](double x, double y, double) { return hypotenuse(x, y); }) == Approx(ring + tube * tube / (2 * ring)).margin(0.005));
  }
}

TEST_CASE("points are uniform by area: the others") {
  {
    const Frame helix = frame_of(7, 0, 2);
    double inner = 1e9, outer = 0;
    for (const auto& p : helix.points) {
      inner = std::min(inner, hypotenuse(p[0], p[1]));
      outer = std::max(outer, hypotenuse(p[0], p[1]));
    }
    const double radius = (inner + outer) / 2, tube = (outer - inner) / 2;
    // The outside of a bent tube has more area than the inside: a half plus tube * curvature / pi.
    REQUIRE(helix.mean([&](double x, double y, double) { return hypotenuse(x, y) > radius; }) == Approx(0.5 + tube / radius / M_PI).margin(0.012));
    REQUIRE(helix.extent(2) > 6 * tube);
  }
  {
    const Frame moebius = frame_of(8, 0, 1);
    // In z it reaches from -half to half, in x from -1 - half^2 / 8 (near the half turn) to 1 + half.
    double half = 0;
    const auto width = [&] { return 2 + half + half * half / 8; };
    for (int i = 0; i < 50; ++i) half = moebius.extent(2) * width() / 2;
    const double scale = width();
    const auto element = [&](double u, double w) { return std::sqrt(std::pow(1 + w * std::cos(u / 2), 2) + w * w / 4); };
    const double expected = quadrature(
        0, 2 * M_PI, -half, half, [](double u, double w) { return std::pow(w * std::sin(u / 2), 2); }, element);
    REQUIRE(moebius.mean([&](double, double, double z) { return z * z * scale * scale; }) == Approx(expected).epsilon(0.03));
  }
  {
    const Frame saddle = frame_of(9, 0, 2);
    const double bend = saddle.high[2];
    REQUIRE(saddle.mean([&](double x, double y, double z) { return std::abs(z - bend * (x * x - y * y)) < 0.02; }) == 1);
    const double expected = quadrature(
        0, 1, 0, 1, [](double r, double) { return r * r; }, [&](double r, double) { return r * std::sqrt(1 + 4 * bend * bend * r * r); });
    REQUIRE(expected > 0.53);  // 0.5 for a uniform disc
    REQUIRE(saddle.mean([](double x, double y, double) { return x * x + y * y; }) == Approx(expected).margin(0.006));
  }
  {
    // Three crossed bars of half width w: six end faces and 24 sides of length 1 - w, nothing inside and nothing twice.
    const Frame cross = frame_of(10, 0, 2);
    double w = 0;
    for (const auto& p : cross.points)
      if (std::abs(p[0]) > 0.5) w = std::max(w, std::abs(p[1]));
    const double area = 6 * 4 * w * w + 24 * 2 * w * (1 - w);
    REQUIRE(cross.mean([&](double x, double, double) { return x > 0.999; }) == Approx(4 * w * w / area).margin(0.01));
    REQUIRE(cross.mean([&](double x, double, double) { return x > 0.6 && x < 0.9; }) == Approx(8 * w * 0.3 / area).margin(0.01));
    REQUIRE(cross.mean([&](double x, double y, double z) { return std::max({std::abs(x), std::abs(y), std::abs(z)}) < w - 0.001; }) == 0);
    REQUIRE(cross.mean([&](double x, double y, double z) { return std::max({std::abs(x), std::abs(y), std::abs(z)}) < w + 0.001; }) < 0.01);
  }
  {
    // A plate 1.8 x 1.4 x 0.16 on four legs flush with its sides: what the legs cover is not counted, the shared sides are counted once.
    const Frame table = frame_of(11, 0, 1.8);
    REQUIRE(table.extent(1) == Approx(1.4).margin(0.002));
    double inner = 1;
    for (const auto& p : table.points)
      if (p[2] < table.low[2] + 0.2) inner = std::min(inner, std::abs(p[0]));
    const double leg = 0.9 - inner, below = table.extent(2) - 0.16;
    const double area = 2 * 1.8 * 1.4 + 2 * (1.8 + 1.4) * 0.16 + 16 * leg * below;
    REQUIRE(table.mean([&](double, double, double z) { return z > table.high[2] - 1e-3; }) == Approx(1.8 * 1.4 / area).margin(0.01));
    REQUIRE(table.mean([&](double, double, double z) { return z < table.low[2] + 1e-3; }) == Approx(4 * leg * leg / area).margin(0.005));
    REQUIRE(table.mean([&](double x, double, double) { return x < -0.9 + 1e-3; }) == Approx((1.4 * 0.16 + 2 * leg * below) / area).margin(0.01));
  }
}

TEST_CASE("classes can be told apart by the distances between points in any pose") {
  const SyntheticShapes train("train", 240, options_of(128)), test("test", 120, options_of(128));
  std::vector<std::vector<double>> known;
  for (uint32_t i = 0; i < 240; ++i) known.push_back(distance_distribution(cloud_of(train, i)));
  std::array<int, 12> right{};
  for (uint32_t i = 0; i < 120; ++i) {
    const std::vector<double> bins = distance_distribution(cloud_of(test, i));
    double best = 1e9;
    size_t nearest = 0;
    for (size_t k = 0; k < known.size(); ++k) {
      double difference = 0;
      for (size_t b = 0; b < bins.size(); ++b) difference += std::abs(bins[b] - known[k][b]);
      if (difference < best) best = difference, nearest = k;
    }
    right[i % 12] += nearest % 12 == i % 12;
  }
  int total = 0;
  for (size_t label = 0; label < 12; ++label) {
    UNSCOPED_INFO(test.class_names()[label] << ": " << right[label] << " of 10");
    total += right[label];
  }
  REQUIRE(total >= 96);  // 10 by chance
}
