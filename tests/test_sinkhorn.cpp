// Facts about Sinkhorn that need no oracle, and the faults that users of similar software reported.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "core/gradcheck.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<double> randn(int64_t n, uint64_t seed, double scale = 1) {
  RandomStream random(seed, "test");
  std::vector<double> v(static_cast<size_t>(n));
  for (double& a : v) a = scale * random.normal();
  return v;
}

struct Result {
  std::vector<double> plan, gradient;
  SinkhornReport report;
};

/// Plan and gradient of sum(w * plan) with random w; masks by value, empty = none.
template <class T = double>
Result run(const Shape& shape, const std::vector<double>& scores, const SinkhornOptions& options, const std::vector<int32_t>& key_mask = {},
           const std::vector<int32_t>& query_mask = {}, const std::vector<int32_t>& pair_mask = {}, uint64_t seed = 99) {
  Tape tape(dtype_of<T>());
  const Tensor s = Tensor::of<T>(shape, std::vector<T>(scores.begin(), scores.end()));
  const int64_t batch = shape.rank() == 2 ? 1 : shape[0];
  AttentionMasks masks;
  Tensor keys, queries, pairs;
  if (!key_mask.empty()) masks.key_is_padding = tape.leaf(keys = Tensor::of<int32_t>({batch, shape[-1]}, key_mask));
  if (!query_mask.empty()) masks.query_is_padding = tape.leaf(queries = Tensor::of<int32_t>({batch, shape[-2]}, query_mask));
  if (!pair_mask.empty()) masks.pair_is_hidden = tape.leaf(pairs = Tensor::of<int32_t>({shape[-2], shape[-1]}, pair_mask));
  const Var x = tape.variable(s), p = sinkhorn(x, options, masks);
  const auto w = randn(shape.count(), seed);
  tape.backward(p, Tensor::of<T>(shape, std::vector<T>(w.begin(), w.end())));
  return {to_doubles(tape.value(p)), to_doubles(tape.grad(x)), sinkhorn_report(p)};
}

double at(const std::vector<double>& v, int64_t m, int64_t i, int64_t j) { return v[static_cast<size_t>(i * m + j)]; }

std::vector<double> row_sums(const std::vector<double>& v, int64_t n, int64_t m) {
  std::vector<double> s(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) s[static_cast<size_t>(i)] += at(v, m, i, j);
  return s;
}

std::vector<double> column_sums(const std::vector<double>& v, int64_t n, int64_t m) {
  std::vector<double> s(static_cast<size_t>(m));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) s[static_cast<size_t>(j)] += at(v, m, i, j);
  return s;
}

double max_abs(const std::vector<double>& v) {
  double m = 0;
  for (double a : v)
    if (!(std::abs(a) <= m)) m = std::abs(a);
  return m;
}

double max_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double m = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= m)) m = std::abs(a[i] - b[i]);
  return m;
}

/// The second singular value of a plan with unit marginals (n x n): power iteration with the constant vector removed.
double second_singular_value(const std::vector<double>& p, int64_t n) {
  auto x = randn(n, 5);
  double norm = 0;
  for (int k = 0; k < 2000; ++k) {
    double mean = 0;
    for (double a : x) mean += a / static_cast<double>(n);
    for (double& a : x) a -= mean;
    std::vector<double> y(x.size()), z(x.size());
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) y[static_cast<size_t>(i)] += at(p, n, i, j) * x[static_cast<size_t>(j)];
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) z[static_cast<size_t>(j)] += at(p, n, i, j) * y[static_cast<size_t>(i)];
    norm = 0;
    for (double a : z) norm += a * a;
    norm = std::sqrt(norm);
    for (size_t i = 0; i < x.size(); ++i) x[i] = z[i] / norm;
  }
  return std::sqrt(norm);
}

}  // namespace

TEST_CASE("one half-step is softmax") {
  const auto s = randn(12, 1);
  Tape tape(DType::f64);
  const Tensor x = Tensor::of<double>({3, 4}, s);
  CHECK(max_difference(run({3, 4}, s, {}).plan, to_doubles(tape.value(softmax(tape.leaf(x))))) < 1e-15);
}

TEST_CASE("odd counts end on rows, even counts on columns") {
  const auto s = randn(25, 2);
  for (int l : {1, 3, 5, 21}) {
    for (double r : row_sums(run({5, 5}, s, {.iterations = l}).plan, 5, 5)) CHECK(std::abs(r - 1) < 1e-14);
  }
  const auto even = run({5, 5}, s, {.iterations = 4});
  for (double c : column_sums(even.plan, 5, 5)) CHECK(std::abs(c - 1) < 1e-14);
  CHECK(max_abs(row_sums(even.plan, 5, 5)) > 1 + 1e-4);
  CHECK_THAT(even.report.warning(), Catch::Contains("ends on columns"));
}

TEST_CASE("fault 9: rectangles have row sums 1 and column sums n/m") {
  for (auto [n, m] : {std::pair<int64_t, int64_t>{3, 7}, {7, 3}}) {
    const auto p = run({n, m}, randn(21, 3), {.iterations = 41}).plan;
    for (double r : row_sums(p, n, m)) CHECK(std::abs(r - 1) < 1e-14);
    for (double c : column_sums(p, n, m)) CHECK(std::abs(c - double(n) / double(m)) < 1e-6);
  }
  for (auto [n, m] : {std::pair<int64_t, int64_t>{3, 7}, {7, 3}}) {
    // The column target is n/m: exact after a column step, and what the marginal error and the tolerance are measured against.
    for (double c : column_sums(run({n, m}, randn(21, 3), {.iterations = 2}).plan, n, m)) CHECK(std::abs(c - double(n) / double(m)) < 1e-14);
    const auto stopped = run({n, m}, randn(21, 3), {.iterations = 99, .tolerance = 1e-4});
    CHECK(stopped.report.most_half_steps < 99);
    CHECK(stopped.report.marginal_error <= 1e-4);
  }
  // One row: after a column step every weight is 1/m, whatever the scores.
  const auto single = run({1, 9}, randn(9, 4), {.iterations = 3});
  for (double p : single.plan) CHECK(std::abs(p - 1.0 / 9) < 1e-15);
  CHECK(max_abs(single.gradient) < 1e-15);
  const auto one = run({1, 1}, {3.0}, {.iterations = 5});
  CHECK(one.plan[0] == Approx(1).margin(1e-15));
  CHECK(std::abs(one.gradient[0]) < 1e-15);
}

TEST_CASE("row sums of the score gradient are 0 at odd counts; column sums vanish in the limit") {
  const auto s = randn(25, 6);
  for (int l : {1, 3, 5, 9, 21}) CHECK(max_abs(row_sums(run({5, 5}, s, {.iterations = l}).gradient, 5, 5)) < 1e-14);
  const double early = max_abs(column_sums(run({5, 5}, s, {.iterations = 3}).gradient, 5, 5));
  const double late = max_abs(column_sums(run({5, 5}, s, {.iterations = 61}).gradient, 5, 5));
  CHECK(early > 1e-3);
  CHECK(late < 1e-8);
}

TEST_CASE("invariance to row and column shifts at the limit, permutation equivariance") {
  const auto s = randn(16, 7), f = randn(4, 8), g = randn(4, 9);
  auto shifted = s;
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 4; ++j) shifted[static_cast<size_t>(i * 4 + j)] += f[static_cast<size_t>(i)] + g[static_cast<size_t>(j)];
  CHECK(max_difference(run({4, 4}, s, {.iterations = 401}).plan, run({4, 4}, shifted, {.iterations = 401}).plan) < 1e-13);
  CHECK(max_difference(run({4, 4}, s, {.iterations = 1}).plan, run({4, 4}, shifted, {.iterations = 1}).plan) > 1e-3);

  const int64_t rows[] = {2, 0, 3, 1}, columns[] = {1, 3, 0, 2};
  auto permuted = s;
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 4; ++j) permuted[static_cast<size_t>(i * 4 + j)] = at(s, 4, rows[i], columns[j]);
  const auto p = run({4, 4}, s, {.iterations = 5}).plan, q = run({4, 4}, permuted, {.iterations = 5}).plan;
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 4; ++j) CHECK(at(q, 4, i, j) == Approx(at(p, 4, rows[i], columns[j])).margin(1e-15));
}

TEST_CASE("fault 1: large scores stay finite and exact") {
  for (int l : {1, 3, 21}) {
    const auto sharp = run<float>({2, 2}, {4000, 0, 0, 4000}, {.iterations = l});
    CHECK(max_difference(sharp.plan, {1, 0, 0, 1}) < 1e-6);
    CHECK(std::isfinite(max_abs(sharp.gradient)));
    const auto flat = run<float>({3, 3}, std::vector<double>(9, 90), {.iterations = l});
    for (double p : flat.plan) CHECK(p == static_cast<double>(1.0f / 3.0f));
    CHECK(std::isfinite(max_abs(flat.gradient)));
  }
  auto huge = randn(64, 10, 1e4);
  for (int l : {1, 2, 3, 21}) {
    const auto r = run<float>({8, 8}, huge, {.iterations = l});
    CHECK(std::isfinite(max_abs(r.plan)));
    CHECK(std::isfinite(max_abs(r.gradient)));
    if (l % 2 == 1)
      for (double s : row_sums(r.plan, 8, 8)) CHECK(std::abs(s - 1) < 1e-5);
  }
}

TEST_CASE("fault 3: a key column of -inf or a masked key has mass and gradient exactly 0") {
  auto s = randn(25, 11);
  auto infinite = s;
  for (int64_t i = 0; i < 5; ++i) infinite[static_cast<size_t>(i * 5 + 4)] = -kInfinity;
  for (int l : {1, 3, 4, 21}) {
    const auto a = run({5, 5}, infinite, {.iterations = l}), b = run({5, 5}, s, {.iterations = l}, {0, 0, 0, 0, 1});
    for (const Result& r : {a, b})
      for (int64_t i = 0; i < 5; ++i) {
        CHECK(at(r.plan, 5, i, 4) == 0);
        CHECK(at(r.gradient, 5, i, 4) == 0);
      }
    CHECK(max_difference(a.plan, b.plan) == 0);
    CHECK(max_difference(a.gradient, b.gradient) == 0);
    if (l == 21)
      for (int64_t j = 0; j < 4; ++j) CHECK(column_sums(a.plan, 5, 5)[static_cast<size_t>(j)] == Approx(1.25).epsilon(1e-4));
  }
}

TEST_CASE("fault 4: padding changes nothing for the real tokens, an additive mask would") {
  const auto s = randn(9, 12);
  for (int l : {1, 2, 3, 5, 21})
    for (auto gradient : {SinkhornGradient::unrolled, SinkhornGradient::frozen, SinkhornGradient::implicit}) {
      const SinkhornOptions options{.iterations = l, .gradient = gradient};
      // w of the padded run must agree on the real entries: draw it for 5 x 5 and cut it.
      std::vector<double> padded = randn(25, 13), cut_w;
      const auto w = randn(25, 99);
      for (int64_t i = 0; i < 3; ++i)
        for (int64_t j = 0; j < 3; ++j) {
          padded[static_cast<size_t>(i * 5 + j)] = at(s, 3, i, j);
          cut_w.push_back(at(w, 5, i, j));
        }
      const auto big = run({5, 5}, padded, options, {0, 0, 0, 1, 1}, {0, 0, 0, 1, 1});
      Tape tape(DType::f64);
      const Tensor x = Tensor::of<double>({3, 3}, s);
      const Var v = tape.variable(x), p = sinkhorn(v, options);
      tape.backward(p, Tensor::of<double>({3, 3}, cut_w));
      for (int64_t i = 0; i < 5; ++i)
        for (int64_t j = 0; j < 5; ++j) {
          const bool real = i < 3 && j < 3;
          CHECK(at(big.plan, 5, i, j) == Approx(real ? at(to_doubles(tape.value(p)), 3, i, j) : 0.0).margin(real ? 1e-12 : 0));
          CHECK(at(big.gradient, 5, i, j) == Approx(real ? at(to_doubles(tape.grad(v)), 3, i, j) : 0.0).margin(real ? 1e-10 : 0));
        }
    }
  auto additive = randn(25, 11);
  for (int64_t i = 0; i < 5; ++i) additive[static_cast<size_t>(i * 5 + 4)] -= 1e9;
  CHECK(column_sums(run({5, 5}, additive, {.iterations = 21}).plan, 5, 5)[4] > 0.9);
}

TEST_CASE("fault 5: the unrolled gradient is the derivative, the frozen one is caught") {
  for (int l : {3, 5}) {
    const Tensor x = Tensor::of<double>({4, 4}, randn(16, 14)), w = Tensor::of<double>({4, 4}, randn(16, 15));
    auto loss = [&](SinkhornGradient gradient) {
      return [=](Tape&, std::span<const Var> in) { return sum(mul(sinkhorn(in[0], {.iterations = l, .gradient = gradient}), in[1])); };
    };
    const auto exact = gradcheck("sinkhorn loss", loss(SinkhornGradient::unrolled), {x, w}, {.tolerance = 1e-8});
    INFO(exact.text());
    CHECK(exact.passed());
    CHECK_FALSE(gradcheck("frozen sinkhorn loss", loss(SinkhornGradient::frozen), {x, w}).passed());
  }
}

TEST_CASE("fault 8: causal masks at one half-step only, with the reason") {
  const auto s = randn(25, 16);
  std::vector<int32_t> causal(25);
  for (int i = 0; i < 5; ++i)
    for (int j = i + 1; j < 5; ++j) causal[static_cast<size_t>(i * 5 + j)] = 1;
  const auto r = run({5, 5}, s, {}, {}, {}, causal);
  for (int64_t i = 0; i < 5; ++i) {
    double z = 0;
    for (int64_t j = 0; j <= i; ++j) z += std::exp(at(s, 5, i, j));
    for (int64_t j = 0; j < 5; ++j) CHECK(at(r.plan, 5, i, j) == Approx(j <= i ? std::exp(at(s, 5, i, j)) / z : 0).margin(1e-15));
  }
  for (int l : {2, 3, 21})
    CHECK_THROWS_WITH(run({5, 5}, s, {.iterations = l}, {}, {}, causal), Catch::Contains("one half-step") && Catch::Contains("identity"));
}

TEST_CASE("fault 12: sharp scores are finite, and the report says what is wrong") {
  for (int l : {3, 21}) {
    const auto r = run({5, 5}, randn(25, 19, 50), {.iterations = l});
    CHECK(std::isfinite(max_abs(r.gradient)));
    CHECK(r.report.marginal_error > 0.5);
    CHECK_THAT(r.report.warning(), Catch::Contains("columns are still off") && Catch::Contains("gradient vanishes"));
  }
  CHECK(run({5, 5}, randn(25, 19, 0.5), {.iterations = 9}).report.warning().empty());
}

TEST_CASE("fault 13: unrolled minus implicit is not zero and decays at the predicted rate") {
  for (uint64_t seed : {20u, 21u, 22u}) {
    const auto s = randn(25, seed);
    auto difference = [&](int l) {
      return max_difference(run({5, 5}, s, {.iterations = l}).gradient,
                            run({5, 5}, s, {.iterations = l, .gradient = SinkhornGradient::implicit}).gradient);
    };
    CHECK(difference(3) > 1e-3);
    const auto limit = run({5, 5}, s, {.iterations = 401, .gradient = SinkhornGradient::implicit});
    const double sigma = second_singular_value(limit.plan, 5), rate = sigma * sigma;
    // The error is one geometric term times a factor that grows with the count; compare over many sweeps.
    int late = 5;
    while (difference(late) > 1e-7) late += 2;
    const double seen = std::pow(difference(late) / difference(late - 6), 1.0 / 3);
    CHECK(seen == Approx(rate).epsilon(0.25));
    CHECK(max_abs(row_sums(limit.gradient, 5, 5)) < 1e-10);
    CHECK(max_abs(column_sums(limit.gradient, 5, 5)) < 1e-10);
    CHECK(limit.report.implicit_residual < 1e-10);
    CHECK(max_difference(limit.gradient, run({5, 5}, s, {.iterations = 401}).gradient) < 1e-10);
  }
}

TEST_CASE("the column error falls by sigma_2^2 per sweep") {
  for (uint64_t seed : {30u, 31u}) {
    const auto s = randn(25, seed);
    auto error = [&](int l) { return run({5, 5}, s, {.iterations = l}).report.marginal_error; };
    const double sigma = second_singular_value(run({5, 5}, s, {.iterations = 801}).plan, 5);
    int late = 5;
    while (error(late) > 1e-8) late += 2;
    CHECK(error(late) / error(late - 2) == Approx(sigma * sigma).epsilon(0.05));
  }
}

TEST_CASE("a tolerance stops each matrix by itself, after a row step") {
  auto mild = randn(16, 40, 0.3), sharp = randn(16, 41, 3.0);
  std::vector<double> both = mild;
  both.insert(both.end(), sharp.begin(), sharp.end());
  const SinkhornOptions options{.iterations = 99, .tolerance = 1e-3};
  const auto batch = run({2, 4, 4}, both, options), a = run({4, 4}, mild, options), b = run({4, 4}, sharp, options);
  CHECK(a.report.most_half_steps < b.report.most_half_steps);
  CHECK(a.report.most_half_steps % 2 == 1);
  CHECK(a.report.marginal_error <= 1e-3);
  CHECK(b.report.marginal_error <= 1e-3);
  CHECK(max_difference({batch.plan.begin(), batch.plan.begin() + 16}, a.plan) == 0);
  CHECK(max_difference({batch.plan.begin() + 16, batch.plan.end()}, b.plan) == 0);
  const auto fixed = run({4, 4}, mild, {.iterations = static_cast<int>(a.report.most_half_steps)});
  CHECK(max_difference(fixed.plan, a.plan) < 1e-14);
  CHECK(max_difference(fixed.gradient, a.gradient) < 1e-14);
}

TEST_CASE("potentials rebuild the plan") {
  Tape tape(DType::f64);
  const Tensor s = Tensor::of<double>({2, 3, 4}, randn(24, 50, 3));
  const Var p = sinkhorn(tape.leaf(s), {.iterations = 5});
  const auto potentials = sinkhorn_potentials(p, s.view());
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t j = 0; j < 4; ++j) {
        const auto k = static_cast<size_t>((b * 3 + i) * 4 + j);
        const double f = potentials.row.span<double>()[static_cast<size_t>(b * 3 + i)],
                     g = potentials.column.span<double>()[static_cast<size_t>(b * 4 + j)];
        CHECK(std::exp(s.span<double>()[k] + f + g) == Approx(p.span<double>()[k]).epsilon(1e-12));
      }
}

TEST_CASE("options without meaning are refused") {
  CHECK_THROWS_WITH(run({2, 2}, randn(4, 1), {.iterations = 0}), Catch::Contains("sinkhorn") && Catch::Contains("iterations = 0"));
  CHECK_THROWS_WITH(run({2, 2}, randn(4, 1), {.iterations = 3, .tolerance = -1}), Catch::Contains("tolerance"));
}

TEST_CASE("the implicit solve is as good in f32, also where the system is nearly singular") {
  for (uint64_t seed = 60; seed < 90; ++seed)
    for (int64_t n : {3, 8, 40}) {
      const auto s = randn(n * n, seed, seed % 3 == 0 ? 2.0 : 0.5);
      std::vector<double> rounded(s.size());
      std::transform(s.begin(), s.end(), rounded.begin(), [](double v) { return static_cast<double>(static_cast<float>(v)); });
      const SinkhornOptions options{.iterations = 301, .gradient = SinkhornGradient::implicit};
      const auto wide = run({n, n}, rounded, options), narrow = run<float>({n, n}, rounded, options);
      INFO("seed " << seed << ", n " << n);
      CHECK(max_difference(narrow.gradient, wide.gradient) <= 1e-4 * max_abs(wide.gradient));
      CHECK(wide.report.implicit_residual < 1e-12);
      CHECK(narrow.report.implicit_residual < 1e-6);
    }
}
