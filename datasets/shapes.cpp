// No libm here except floor and sqrt, which are exact: sine and cosine differ between C libraries in the last bit.
// Build this file with -ffp-contract=off: a fused multiply-add rounds differently.
#include "datasets/shapes.h"

#include <array>
#include <cmath>

#include "core/parallel.h"

namespace sinkgrad {
namespace {

struct Point {
  double x, y, z;
};
Point operator+(Point a, Point b) { return {a.x + b.x, a.y + b.y, a.z + b.z}; }
Point operator-(Point a, Point b) { return {a.x - b.x, a.y - b.y, a.z - b.z}; }
Point operator*(double s, Point a) { return {s * a.x, s * a.y, s * a.z}; }

struct Angle {
  double cosine, sine;
};

/// An angle given in turns: Taylor series on an eighth of a turn, error below 1e-13.
Angle angle(double turns) {
  const double quarter = std::floor(4 * turns + 0.5), x = (4 * turns - quarter) * 1.57079632679489661923, q = x * x;
  const double s = x * (1 - q / 6 * (1 - q / 20 * (1 - q / 42 * (1 - q / 72 * (1 - q / 110 * (1 - q / 156))))));
  const double c = 1 - q / 2 * (1 - q / 12 * (1 - q / 30 * (1 - q / 56 * (1 - q / 90 * (1 - q / 132 * (1 - q / 182))))));
  switch (static_cast<int64_t>(quarter) & 3) {
    case 0: return {c, s};
    case 1: return {-s, c};
    case 2: return {-c, -s};
    default: return {s, -c};
  }
}

/// Zero mean, unit variance, bell-shaped: the sum of three uniform numbers. It stands in for the normal distribution, which needs a logarithm.
double bell(RandomStream& random) {
  double sum = -1.5;
  for (int i = 0; i < 3; ++i) sum += random.next_u32() * 0x1p-32;
  return 2 * sum;
}

Point in_disc(RandomStream& random) {
  const double radius = std::sqrt(random.uniform());
  const Angle a = angle(random.uniform());
  return {radius * a.cosine, radius * a.sine, 0};
}

Point in_triangle(RandomStream& random, Point a, Point b, Point c) {
  double s = random.uniform(), t = random.uniform();
  if (s > t) std::swap(s, t);
  return a + s * (b - a) + (1 - t) * (c - a);
}

Point on_sphere(RandomStream& random) {
  const double z = random.uniform(-1, 1), radius = std::sqrt(1 - z * z);
  const Angle a = angle(random.uniform());
  return {radius * a.cosine, radius * a.sine, z};
}

struct Box {
  Point centre, half;
  double area() const { return 8 * (half.x * half.y + half.y * half.z + half.z * half.x); }
  /// Largest of |p - centre| / half over the axes: 1 on the surface.
  double level(Point p) const {
    const Point d = p - centre;
    return std::max({std::abs(d.x) / half.x, std::abs(d.y) / half.y, std::abs(d.z) / half.z});
  }
  Point on_surface(RandomStream& random) const {
    const double u = random.uniform(-1, 1), v = random.uniform(-1, 1), side = random.next_u32() % 2 ? 1 : -1;
    double pick = random.uniform(0, area() / 8);
    Point p{u, v, side};
    if ((pick -= half.x * half.y) >= 0) p = pick < half.y * half.z ? Point{side, u, v} : Point{v, side, u};
    return centre + Point{half.x * p.x, half.y * p.y, half.z * p.z};
  }
};

/// On the surface of a union of boxes. Where faces coincide, the point counts for the first box.
Point on_boxes(RandomStream& random, std::span<const Box> boxes) {
  constexpr double kTouching = 1e-9;
  double total = 0;
  for (const Box& b : boxes) total += b.area();
  for (;;) {
    size_t chosen = 0;
    for (double pick = random.uniform(0, total); chosen + 1 < boxes.size() && (pick -= boxes[chosen].area()) >= 0;) ++chosen;
    const Point p = boxes[chosen].on_surface(random);
    bool hidden = false;
    for (size_t i = 0; i < boxes.size(); ++i) hidden |= i != chosen && boxes[i].level(p) < (i < chosen ? 1 + kTouching : 1 - kTouching);
    if (!hidden) return p;
  }
}

/// Two numbers in [0, 1) that vary the proportions of an item.
struct Form {
  double a, b;
};

// Each surface draws one point, uniformly by area: in closed form, or by accepting candidates in proportion to the area element.

Point sphere(RandomStream& random, Form) { return on_sphere(random); }

Point ellipsoid(RandomStream& random, Form form) {
  const double b = 0.4 + 0.15 * form.a, c = 0.2 + 0.15 * form.b;  // half axes 1, b, c
  for (;;) {
    const Point n = on_sphere(random);
    const double element = std::sqrt(b * c * n.x * (b * c * n.x) + c * n.y * (c * n.y) + b * n.z * (b * n.z));
    if (random.uniform() * b < element) return {n.x, b * n.y, c * n.z};
  }
}

Point cube(RandomStream& random, Form) { return Box{{0, 0, 0}, {0.8, 0.8, 0.8}}.on_surface(random); }

Point cylinder(RandomStream& random, Form form) {
  const double radius = 0.4 + 0.3 * form.a, height = 1.4 + 0.6 * form.b;
  if (random.uniform() * (height + radius) < height) {
    const Angle a = angle(random.uniform());
    return {radius * a.cosine, radius * a.sine, height * (random.uniform() - 0.5)};
  }
  const double cap = random.next_u32() % 2 ? 0.5 : -0.5;
  return radius * in_disc(random) + Point{0, 0, cap * height};
}

Point cone(RandomStream& random, Form form) {
  const double radius = 0.6 + 0.3 * form.a, height = 1.3 + 0.6 * form.b, slant = std::sqrt(radius * radius + height * height);
  const bool side = random.uniform() * (slant + radius) < slant;
  const Point p = in_disc(random);  // the side, seen from above, is a disc with constant area element
  return {radius * p.x, radius * p.y, side ? height * (0.5 - std::sqrt(p.x * p.x + p.y * p.y)) : -0.5 * height};
}

Point pyramid(RandomStream& random, Form form) {
  const double half = 0.6 + 0.2 * form.a, height = 1.2 + 0.5 * form.b, slant = std::sqrt(half * half + height * height);
  if (random.uniform() * (half + slant) < half) return {random.uniform(-half, half), random.uniform(-half, half), -0.5 * height};
  Point p = in_triangle(random, {0, 0, 0.5 * height}, {half, -half, -0.5 * height}, {half, half, -0.5 * height});
  for (uint32_t turns = random.next_u32() % 4; turns > 0; --turns) p = {-p.y, p.x, p.z};
  return p;
}

/// A tube of radius `tube` around a curve of curvature `curvature`: the angle from the curve's normal, by area.
Angle around_tube(RandomStream& random, double tube, double curvature) {
  for (;;) {
    const Angle a = angle(random.uniform());
    if (random.uniform() * (1 + tube * curvature) < 1 - tube * curvature * a.cosine) return a;
  }
}

Point torus(RandomStream& random, Form form) {
  const double tube = 0.2 + 0.2 * form.a, ring = 0.8;
  const Angle v = around_tube(random, tube, 1 / ring), u = angle(random.uniform());
  const double radius = ring - tube * v.cosine;  // the normal of a circle points to its centre
  return {radius * u.cosine, radius * u.sine, tube * v.sine};
}

Point helix(RandomStream& random, Form form) {
  // Curve (r cos u, r sin u, rise u) with Frenet frame N = (-cos u, -sin u, 0), B = (rise sin u, -rise cos u, r) / speed.
  const double radius = 0.6, rise = 0.08 + 0.04 * form.a, tube = 0.1 + 0.05 * form.b, turns = 3, speed = std::sqrt(radius * radius + rise * rise);
  const double t = turns * (random.uniform() - 0.5);
  const Angle u = angle(t), v = around_tube(random, tube, radius / (speed * speed));
  const Point curve{radius * u.cosine, radius * u.sine, 6.28318530717958647692 * rise * t};
  const Point normal{-u.cosine, -u.sine, 0}, binormal = (1 / speed) * Point{rise * u.sine, -rise * u.cosine, radius};
  return curve + tube * v.cosine * normal + tube * v.sine * binormal;
}

Point moebius(RandomStream& random, Form form) {
  const double half = 0.25 + 0.2 * form.a, largest = std::sqrt((1 + half) * (1 + half) + half * half / 4);
  for (;;) {
    const double t = random.uniform(), w = random.uniform(-half, half);
    const Angle u = angle(t), twist = angle(t / 2);
    const double radius = 1 + w * twist.cosine, element = std::sqrt(radius * radius + w * w / 4);
    if (random.uniform() * largest < element) return {radius * u.cosine, radius * u.sine, w * twist.sine};
  }
}

Point saddle(RandomStream& random, Form form) {
  const double bend = 0.6 + 0.4 * form.a, largest = std::sqrt(1 + 4 * bend * bend);
  for (;;) {
    const Point p = in_disc(random);
    const double element = std::sqrt(1 + 4 * bend * bend * (p.x * p.x + p.y * p.y));
    if (random.uniform() * largest < element) return {p.x, p.y, bend * (p.x * p.x - p.y * p.y)};
  }
}

Point cross(RandomStream& random, Form form) {
  const double w = 0.15 + 0.1 * form.a;
  return on_boxes(random, std::array{Box{{0, 0, 0}, {1, w, w}}, Box{{0, 0, 0}, {w, 1, w}}, Box{{0, 0, 0}, {w, w, 1}}});
}

Point table(RandomStream& random, Form form) {
  const double leg = 0.08 + 0.06 * form.a, height = 0.5 + 0.3 * form.b, x = 0.9 - leg, y = 0.7 - leg;
  const Point half{leg, leg, height};
  return on_boxes(random, std::array{Box{{0, 0, height}, {0.9, 0.7, 0.08}}, Box{{x, y, 0}, half}, Box{{x, -y, 0}, half}, Box{{-x, y, 0}, half},
                                     Box{{-x, -y, 0}, half}});
}

struct Surface {
  const char* name;
  Point (*draw)(RandomStream&, Form);
};
constexpr std::array kSurfaces = {
    Surface{"sphere", sphere},   Surface{"ellipsoid", ellipsoid}, Surface{"cube", cube},   Surface{"cylinder", cylinder},
    Surface{"cone", cone},       Surface{"pyramid", pyramid},     Surface{"torus", torus}, Surface{"helix", helix},
    Surface{"moebius", moebius}, Surface{"saddle", saddle},       Surface{"cross", cross}, Surface{"table", table},
};

using Rotation = std::array<Point, 3>;

/// The rotation of a unit quaternion, by rows.
Rotation rotation(double w, double x, double y, double z) {
  return {Point{1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)},
          Point{2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)},
          Point{2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}};
}

/// Uniform over all rotations (Shoemake 1992), or over those about the z axis.
Rotation random_rotation(RandomStream& random, bool upright) {
  const double u = random.uniform(), p = std::sqrt(1 - u), q = std::sqrt(u);
  const Angle a = angle(random.uniform()), b = angle(random.uniform());
  return upright ? rotation(a.cosine, 0, 0, a.sine) : rotation(q * b.cosine, p * a.sine, p * a.cosine, q * b.sine);
}

double dot(Point a, Point b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

void draw_cloud(RandomStream random, const Surface& surface, const SyntheticShapes::Options& options, float* out) {
  const Form form{random.uniform(), random.uniform()};
  Point scale{random.uniform(0.85, 1.15), random.uniform(0.85, 1.15), random.uniform(0.85, 1.15)};
  Rotation pose = random_rotation(random, options.pose == SyntheticShapes::Pose::upright);
  if (options.pose == SyntheticShapes::Pose::fixed) scale = {1, 1, 1}, pose = rotation(1, 0, 0, 0);
  const auto count = static_cast<size_t>(3 * options.points);
  for (size_t i = 0; i < count; i += 3) {
    const Point p = surface.draw(random, form), scaled{scale.x * p.x, scale.y * p.y, scale.z * p.z};
    for (size_t axis = 0; axis < 3; ++axis) out[i + axis] = static_cast<float>(dot(pose[axis], scaled) + options.noise * bell(random));
  }
  double sum = 0, squares = 0;
  for (size_t i = 0; i < count; ++i) sum += out[i];
  const double mean = sum / static_cast<double>(count);
  for (size_t i = 0; i < count; ++i) squares += (out[i] - mean) * (out[i] - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(count));
  for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>((out[i] - mean) / deviation);
}

}  // namespace

SyntheticShapes::SyntheticShapes(const std::string& split, int64_t size, const Options& options) : split_(split), size_(size), options_(options) {
  require<InputError>(size >= 1 && size <= INT32_MAX, "shapes: the number of ", split, " clouds must be 1 to ", INT32_MAX, ", got ", size);
  require<InputError>(options.points >= 2 && options.points <= 1'000'000, "shapes: points must be 2 to 1000000, got ", options.points);
  require<InputError>(options.noise >= 0 && options.noise <= 10, "shapes: noise must be 0 to 10, got ", options.noise);
}

const std::vector<std::string>& SyntheticShapes::class_names() const {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Surface& s : kSurfaces) list.emplace_back(s.name);
    return list;
  }();
  return names;
}

std::string SyntheticShapes::description() const {
  return cat("shapes ", split_, ": ", size_, " clouds ", item_shape(), ", ", classes(), " classes");
}

void SyntheticShapes::load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const {
  for (const uint32_t index : indices) require(index < size_, "shapes: item ", index, " is out of range, there are ", size_);
  const uint64_t drawing = options_.augment && epoch ? *epoch + 1 : 0;
  const std::string stream = "shapes " + split_;
  parallel_for(static_cast<int64_t>(indices.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint32_t index = indices[static_cast<size_t>(row)];
      const size_t label = index % kSurfaces.size();
      labels[row] = static_cast<int32_t>(label);
      draw_cloud(RandomStream(options_.seed, stream, drawing << 32 | index), kSurfaces[label], options_, inputs + 3 * options_.points * row);
    }
  });
}

std::vector<int64_t> SyntheticShapes::label_histogram() const {
  std::vector<int64_t> counts(kSurfaces.size());
  for (size_t label = 0; label < counts.size(); ++label)
    counts[label] = (size_ + static_cast<int64_t>(counts.size() - label) - 1) / static_cast<int64_t>(counts.size());
  return counts;
}

}  // namespace sinkgrad
