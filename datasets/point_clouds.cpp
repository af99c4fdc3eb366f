// From stored clouds to items. Everything random is keyed by seed, epoch and item.
#include "datasets/point_clouds.h"

#include <cmath>
#include <numbers>

#include "core/parallel.h"

namespace sinkgrad {
namespace {

using Cloud = std::span<float>;  // x, y, z of each point

void standardise(Cloud cloud) {
  constexpr double kClip = 100;  // times the mean absolute value: only wild outliers are further out
  const auto count = static_cast<double>(cloud.size());
  double sum = 0, squares = 0;
  for (const float x : cloud) sum += std::abs(x);
  const auto bound = static_cast<float>(kClip * sum / count);
  sum = 0;
  for (float& x : cloud) sum += x = std::clamp(x, -bound, bound);
  const double mean = sum / count;
  for (const float x : cloud) squares += (x - mean) * (x - mean);
  const double deviation = std::sqrt(squares / count);
  const double scale = deviation > 0 ? 1 / deviation : 1;  // a cloud of one repeated coordinate stays at 0
  for (float& x : cloud) x = static_cast<float>((x - mean) * scale);
}

void fit_unit_sphere(Cloud cloud) {
  double centre[3] = {}, farthest = 0;
  for (size_t i = 0; i < cloud.size(); ++i) centre[i % 3] += cloud[i];
  for (double& c : centre) c /= static_cast<double>(cloud.size() / 3);
  for (size_t i = 0; i < cloud.size(); i += 3) {
    double squares = 0;
    for (size_t axis = 0; axis < 3; ++axis) squares += std::pow(cloud[i + axis] - centre[axis], 2);
    farthest = std::max(farthest, squares);
  }
  const double scale = farthest > 0 ? 1 / std::sqrt(farthest) : 1;
  for (size_t i = 0; i < cloud.size(); ++i) cloud[i] = static_cast<float>((cloud[i] - centre[i % 3]) * scale);
}

void rotate_and_scale(Cloud cloud, RandomStream random) {
  const double angle = std::numbers::pi * random.uniform(-0.1, 0.1), c = std::cos(angle), s = std::sin(angle);
  double scale[3];
  for (double& each : scale) each = random.uniform(0.8, 1.25);
  for (size_t i = 0; i < cloud.size(); i += 3) {
    const double x = cloud[i], y = cloud[i + 1];
    cloud[i] = static_cast<float>(scale[0] * (c * x - s * y));
    cloud[i + 1] = static_cast<float>(scale[1] * (s * x + c * y));
    cloud[i + 2] = static_cast<float>(scale[2] * cloud[i + 2]);
  }
}

void drop_scale_and_shift(Cloud cloud, RandomStream random) {
  const double share = random.uniform(0, 0.875);
  double scale[3], shift[3];
  for (double& each : scale) each = random.uniform(2.0 / 3, 3.0 / 2);
  for (double& each : shift) each = random.uniform(-0.2, 0.2);
  for (size_t i = 0; i < cloud.size(); i += 3)
    if (random.uniform() <= share) std::copy_n(cloud.begin(), 3, cloud.begin() + static_cast<ptrdiff_t>(i));
  for (size_t i = 0; i < cloud.size(); ++i) cloud[i] = static_cast<float>(scale[i % 3] * cloud[i] + shift[i % 3]);
  for (size_t left = cloud.size() / 3; left > 1; --left)
    std::swap_ranges(cloud.begin() + static_cast<ptrdiff_t>(3 * left - 3), cloud.begin() + static_cast<ptrdiff_t>(3 * left),
                     cloud.begin() + static_cast<ptrdiff_t>(3 * random.below(left)));
}

}  // namespace

PointClouds::PointClouds(std::shared_ptr<const CloudCollection> clouds, Split split, const Options& options)
    : clouds_(std::move(clouds)), split_(split), options_(options) {
  const int64_t stored = clouds_->points, points = options.points;
  require<InputError>(points >= 2 && points <= stored, options.name, ": points must be 2 to ", stored, ", the size of the stored clouds, got ",
                      points);
  require<InputError>(!items().empty(), options.name, ": there are no ", split == Split::train ? "training" : "test", " clouds");
  const int64_t stride = stored / points;
  const std::vector<uint32_t> order = RandomStream(options.seed, "points kept").permutation(static_cast<uint32_t>(stored));
  const int64_t first = std::min<int64_t>(1, stored - 1 - stride * (points - 1));  // 1 unless all points are taken
  for (int64_t i = 0; i < points; ++i) {
    const int64_t strided = split == Split::train ? order[static_cast<size_t>(stride * i)] : first + stride * i;
    kept_.push_back(static_cast<uint32_t>(options.subset == Subset::first ? i : strided));
  }
}

std::string PointClouds::description() const {
  return cat(options_.name, split_ == Split::train ? " train: " : " test: ", size(), " clouds ", item_shape(), ", ", classes(), " classes",
             clouds_->notes.empty() ? "" : "; " + clouds_->notes);
}

void PointClouds::load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const {
  for (const uint32_t index : indices) require(index < items().size(), options_.name, ": item ", index, " is out of range, there are ", size());
  const auto stored = static_cast<size_t>(3 * clouds_->points), count = static_cast<size_t>(3 * options_.points);
  const std::span<const float> all = clouds_->cache->data<float>();
  parallel_for(static_cast<int64_t>(indices.size()), 1, [&](int64_t begin, int64_t end) {
    for (auto row = static_cast<size_t>(begin); row < static_cast<size_t>(end); ++row) {
      const uint32_t item = items()[indices[row]];
      const Cloud cloud(inputs + count * row, count);
      for (size_t i = 0; i < kept_.size(); ++i) std::copy_n(&all[stored * item + 3 * kept_[i]], 3, &cloud[3 * i]);
      if (options_.normalise == Normalise::standardise) standardise(cloud);
      if (options_.normalise == Normalise::unit_sphere) fit_unit_sphere(cloud);
      const RandomStream random(options_.seed, "cloud augmentation", epoch.value_or(0) << 32 | indices[row]);
      if (epoch && options_.augment == Augment::rotate_scale) rotate_and_scale(cloud, random);
      if (epoch && options_.augment == Augment::dropout_scale_shift) drop_scale_and_shift(cloud, random);
      labels[row] = clouds_->labels[item];
    }
  });
}

std::vector<int64_t> PointClouds::label_histogram() const {
  std::vector<int64_t> counts(clouds_->class_names.size());
  for (const uint32_t item : items()) ++counts[static_cast<size_t>(clouds_->labels[item])];
  return counts;
}

}  // namespace sinkgrad
