// Layer norm and batch norm: data with a large mean, empty inputs, statistics, and bits that do not depend on threads.
// The gradients of their samples are checked by the loop over all registered ops.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/parallel.h"
#include "core/rng.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

std::vector<float> random_values(int64_t n, uint64_t seed, double low = -1, double high = 1) {
  RandomStream random(seed, "test_norm");
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = static_cast<float>(random.uniform(low, high));
  return v;
}

/// Output and gradients of a norm with gain 1 and bias 0, the cotangent being random.
struct Result {
  std::vector<float> y, dx, dgain, dbias;
};

template <class Norm>
Result run(Norm norm, const Shape& shape, const std::vector<float>& x) {
  const Tensor value = Tensor::of<float>(shape, x), cotangent = Tensor::of<float>(shape, random_values(shape.count(), 99));
  const Tensor gain = Tensor::of<float>({shape[-1]}, std::vector<float>(static_cast<size_t>(shape[-1]), 1.0f)), bias({shape[-1]});
  Tape tape;
  const Var in = tape.variable(value), g = tape.variable(gain), b = tape.variable(bias);
  const Var y = norm(in, g, b);
  tape.backward(y, cotangent);
  auto copy = [](const View& v) { return std::vector<float>(v.as<float>(), v.as<float>() + v.shape.count()); };
  return {copy(tape.value(y)), copy(tape.grad(in)), copy(tape.grad(g)), copy(tape.grad(b))};
}

Result run_layer_norm(const Shape& shape, const std::vector<float>& x) {
  return run([](Var a, Var g, Var b) { return layer_norm(a, g, b); }, shape, x);
}
Result run_batch_norm(const Shape& shape, const std::vector<float>& x) {
  return run([](Var a, Var g, Var b) { return batch_norm_train(a, g, b); }, shape, x);
}

/// (x - mean) / sqrt(variance + 1e-5) in double, of the values as they are in f32.
std::vector<double> exact(const std::vector<float>& x) {
  long double mean = 0, variance = 0;
  for (float v : x) mean += v;
  mean /= static_cast<long double>(x.size());
  for (float v : x) variance += (v - mean) * (v - mean);
  variance /= static_cast<long double>(x.size());
  std::vector<double> y;
  for (float v : x) y.push_back(static_cast<double>((v - mean) / std::sqrt(variance + 1e-5L)));
  return y;
}

std::vector<std::vector<float>> rows_with_a_large_mean() {
  std::vector<float> steps, constant(10240, 256.0f), first(10240, 256.0f), far;
  for (int i = 0; i < 16; ++i) steps.push_back(static_cast<float>(1000 + i * 1e-3));
  constant[5000] = 255;
  first[0] = 255;
  for (int i = 0; i < 300; ++i) far.push_back(i == 0 ? 1e6f : static_cast<float>(i % 7));  // the first element far from the others
  return {{40000, 40001, 40002, 40003}, steps, constant, first, far};
}

}  // namespace

TEST_CASE("fault 45: norms of data with a large mean and a small spread") {
  const auto known = run_layer_norm({1, 4}, {40000, 40001, 40002, 40003}).y;
  const double expected[] = {-1.3416, -0.4472, 0.4472, 1.3416};
  for (size_t i = 0; i < 4; ++i) CHECK(std::abs(known[i] - expected[i]) < 1e-3);

  for (const auto& x : rows_with_a_large_mean()) {
    const auto n = static_cast<int64_t>(x.size());
    const auto y = exact(x);
    for (const Result& r : {run_layer_norm({1, n}, x), run_batch_norm({n, 1}, x)}) {
      double worst = 0, largest = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        worst = std::max(worst, std::abs(r.y[i] - y[i]));
        largest = std::max(largest, std::abs(y[i]));
      }
      INFO("n = " << n << ", first = " << x[0]);
      CHECK(worst < 1e-5 * largest);
      CHECK(std::all_of(r.dx.begin(), r.dx.end(), [](float v) { return std::isfinite(v); }));
      CHECK(std::isfinite(r.dgain[0]));
    }
  }
}

TEST_CASE("layer norm of rows of any length, against double precision") {
  constexpr int64_t rows = 5;
  for (const int64_t n : {2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 256, 259}) {
    const std::vector<float> x = random_values(rows * n, 1, 2, 5), d = random_values(rows * n, 99), g = random_values(n, 3);
    const Tensor value = Tensor::of<float>({rows, n}, x), cotangent = Tensor::of<float>({rows, n}, d), gain = Tensor::of<float>({n}, g),
                 bias = Tensor::of<float>({n}, random_values(n, 4));
    Tape tape;
    const Var in = tape.variable(value), vg = tape.variable(gain), vb = tape.variable(bias);
    const Var sum = add(layer_norm(in, vg, vb), in);  // the gradient of x is added to that of the sum
    tape.backward(sum, cotangent);
    std::vector<double> dgain(static_cast<size_t>(n)), dbias(dgain);
    double worst = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const auto at = static_cast<size_t>(r * n);
      const std::vector<float> row(x.begin() + r * n, x.begin() + (r + 1) * n);
      const std::vector<double> z = exact(row);
      double mean = 0, variance = 0, mean_g = 0, mean_gz = 0;
      for (const float v : row) mean += double{v} / static_cast<double>(n);
      for (const float v : row) variance += (v - mean) * (v - mean) / static_cast<double>(n);
      for (size_t j = 0; j < z.size(); ++j) {
        dgain[j] += d[at + j] * z[j];
        dbias[j] += d[at + j];
        mean_g += double{d[at + j]} * g[j] / static_cast<double>(n);
        mean_gz += double{d[at + j]} * g[j] * z[j] / static_cast<double>(n);
      }
      for (size_t j = 0; j < z.size(); ++j) {
        const double y = z[j] * g[j] + bias.span<float>()[j] + row[j];
        const double dx = (double{d[at + j]} * g[j] - mean_g - z[j] * mean_gz) / std::sqrt(variance + 1e-5) + d[at + j];
        worst =
            std::max({worst, std::abs(sum.span<float>()[at + j] - y) / 8, std::abs(tape.grad(in).as<float>()[at + j] - dx) * std::sqrt(variance)});
      }
    }
    for (size_t j = 0; j < dgain.size(); ++j)
      worst = std::max({worst, std::abs(tape.grad(vg).as<float>()[j] - dgain[j]), std::abs(tape.grad(vb).as<float>()[j] - dbias[j])});
    INFO("rows of " << n);
    CHECK(worst < 3e-6);
  }
}

TEST_CASE("norms of a constant row give the bias and a finite gradient") {
  const Result r = run_layer_norm({2, 3}, {5, 5, 5, 1e-20f, 1e-20f, 1e-20f});
  for (float v : r.y) CHECK(v == 0);
  for (float v : r.dx) CHECK(std::isfinite(v));
}

TEST_CASE("fault 91: layer norm of empty inputs") {
  CHECK(run_layer_norm({5, 0}, {}).dx.empty());
  const Result r = run_layer_norm({0, 5}, {});
  CHECK(r.y.empty());
  CHECK(r.dgain == std::vector<float>(5, 0.0f));
  CHECK(r.dbias == std::vector<float>(5, 0.0f));
}

TEST_CASE("fault 88: layer norm of more rows than 65535") {
  for (int64_t rows : {65535, 65536, 70000}) {
    auto x = random_values(2 * rows, 3);
    const auto y = run_layer_norm({rows, 2}, x).y;
    for (int64_t r : {int64_t{0}, int64_t{65534}, rows - 1}) {
      const auto i = static_cast<size_t>(2 * r);
      const double half = (double{x[i]} - double{x[i + 1]}) / 2;
      CHECK(y[i] == Approx(half / std::sqrt(half * half + 1e-5)).margin(1e-5));
      CHECK(y[i + 1] == -y[i]);
    }
  }
}

TEST_CASE("norms give the same bits for any number of threads") {
  const int before = threads();
  const Shape shape{333, 130};
  const auto x = random_values(shape.count(), 5, 2, 4);
  set_threads(1);
  const Result layer = run_layer_norm(shape, x), batch = run_batch_norm(shape, x);
  for (int n : {2, 3, 7}) {
    set_threads(n);
    const Result a = run_layer_norm(shape, x), b = run_batch_norm(shape, x);
    CHECK((a.y == layer.y && a.dx == layer.dx && a.dgain == layer.dgain && a.dbias == layer.dbias));
    CHECK((b.y == batch.y && b.dx == batch.dx && b.dgain == batch.dgain && b.dbias == batch.dbias));
  }
  set_threads(before);
}

TEST_CASE("batch norm keeps mean and biased variance, and evaluation with them gives the same output") {
  const Shape shape{4, 5, 3};
  const Tensor x = Tensor::of<float>(shape, random_values(60, 1, 10, 12)), gain = Tensor::of<float>({3}, {1, 2, -1}),
               bias = Tensor::of<float>({3}, {0, 1, 2});
  Tape tape;
  const Var in = tape.leaf(x), g = tape.leaf(gain), b = tape.leaf(bias);
  const Var train = batch_norm_train(in, g, b);
  const View mean = tape.saved(train, 0), variance = tape.saved(train, 1);
  for (size_t c = 0; c < 3; ++c) {
    double m = 0, v = 0;
    for (size_t r = 0; r < 20; ++r) m += x.span<float>()[3 * r + c] / 20;
    for (size_t r = 0; r < 20; ++r) v += std::pow(x.span<float>()[3 * r + c] - m, 2) / 20;
    CHECK(mean.as<float>()[c] == Approx(m).epsilon(1e-6));
    CHECK(variance.as<float>()[c] == Approx(v).epsilon(1e-5));
  }
  const Var eval = batch_norm_eval(in, g, b, tape.leaf(mean), tape.leaf(variance));
  for (size_t i = 0; i < 60; ++i) CHECK(eval.span<float>()[i] == Approx(train.span<float>()[i]).margin(2e-5));
}

TEST_CASE("batch norm evaluation treats its statistics as constants") {
  const Tensor x = Tensor::of<float>({2, 2}, {1, 2, 3, 4}), ones = Tensor::of<float>({2}, {1, 1});
  Tape tape;
  const Var statistics = tape.variable(ones);
  const Var y = batch_norm_eval(tape.leaf(x), tape.variable(ones), tape.leaf(ones), statistics, statistics);
  tape.backward(y, x);
  CHECK(!tape.grad(statistics));
}

TEST_CASE("norms refuse what has no statistics") {
  const Tensor none({0, 3}), row({1, 3}), c({3});
  Tape tape;
  const Var v = tape.leaf(c);
  CHECK_THROWS_WITH(batch_norm_train(tape.leaf(none), v, v), "batch_norm_train: statistics need at least one row, got (0,3), (3), (3)");
  CHECK_THROWS_WITH(layer_norm(tape.leaf(row), v, v, 0), "layer_norm: epsilon must be positive, got 0");
}
