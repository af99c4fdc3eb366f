// The numbers of an inspection, also as they stand in its JSON, against a plain recomputation, and against what is known of Sinkhorn.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/rng.h"
#include "nn/inspect/inspection.h"
#include "tools/ui/inspection_data.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

using Wide = long double;
using Wides = std::vector<Wide>;

Tensor randn(const Shape& shape, uint64_t seed, double scale = 1) {
  Tensor t(shape, DType::f64);
  RandomStream random(seed, "test");
  for (double& a : t.span<double>()) a = scale * random.normal();
  return t;
}

/// Half-steps forward and the adjoint recursion backward, written out over the lines that take part.
struct Recomputed {
  std::vector<Wides> f, g, plan, f_cotangent, g_cotangent, contribution;  // by half-step, full size
  Wides direct, total;
  size_t n, m;

  Recomputed(const Tensor& c, const Numbers& w, int l, const std::vector<int64_t>& rows, const std::vector<int64_t>& columns)
      : n(static_cast<size_t>(c.shape()[0])), m(static_cast<size_t>(c.shape()[1])) {
    const Wide target = static_cast<Wide>(rows.size()) / static_cast<Wide>(columns.size());
    const auto score = [&](int64_t i, int64_t j) { return static_cast<Wide>(c.span<double>()[at(i, j)]); };
    Wides F(n), G(m);
    for (int k = 0; k < l; ++k) {
      const bool on_rows = k % 2 == 0;
      for (int64_t a : on_rows ? rows : columns) {
        Wide top = -std::numeric_limits<Wide>::infinity(), sum = 0;
        const auto exponent = [&](int64_t b) { return on_rows ? score(a, b) + G[idx(b)] : score(b, a) + F[idx(b)]; };
        for (int64_t b : on_rows ? columns : rows) top = std::max(top, exponent(b));
        for (int64_t b : on_rows ? columns : rows) sum += std::exp(exponent(b) - top);
        (on_rows ? F : G)[idx(a)] = (on_rows ? 0 : std::log(target)) - top - std::log(sum);
      }
      f.push_back(F);
      g.push_back(G);
      plan.emplace_back(n * m);
      for (int64_t i : rows)
        for (int64_t j : columns) plan.back()[at(i, j)] = std::exp(score(i, j) + F[idx(i)] + G[idx(j)]);
    }
    Wides df(n), dg(m);
    direct = total = Wides(n * m);
    for (int64_t i : rows)
      for (int64_t j : columns) {
        const Wide d = plan.back()[at(i, j)] * static_cast<Wide>(w[at(i, j)]);
        direct[at(i, j)] = total[at(i, j)] = d;
        df[idx(i)] += d;
        dg[idx(j)] += d;
      }
    f_cotangent = std::vector(static_cast<size_t>(l), Wides(n));
    g_cotangent = std::vector(static_cast<size_t>(l), Wides(m));
    contribution = std::vector(static_cast<size_t>(l), Wides(n * m));
    for (auto k = static_cast<size_t>(l); k-- > 0;) {
      const bool on_rows = k % 2 == 0;
      (on_rows ? f_cotangent : g_cotangent)[k] = on_rows ? df : dg;
      for (int64_t i : rows)
        for (int64_t j : columns) {
          const Wide part = -plan[k][at(i, j)] * (on_rows ? df[idx(i)] : dg[idx(j)] / target);
          contribution[k][at(i, j)] = part;
          total[at(i, j)] += part;
          (on_rows ? dg[idx(j)] : df[idx(i)]) += part;
        }
      std::fill(on_rows ? df.begin() : dg.begin(), on_rows ? df.end() : dg.end(), Wide(0));
    }
  }
  static size_t idx(int64_t i) { return static_cast<size_t>(i); }
  size_t at(int64_t i, int64_t j) const { return static_cast<size_t>(i) * m + static_cast<size_t>(j); }
};

double difference(const Numbers& a, const Wides& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (const double e = std::abs(static_cast<double>(static_cast<Wide>(a[i]) - b[i])); worse(e, worst)) worst = e;
  return worst;
}

double difference(const Numbers& a, const Numbers& b) { return difference(a, Wides(b.begin(), b.end())); }

/// All half-steps one after another.
Wides joined(const std::vector<Wides>& steps) {
  Wides all;
  for (const Wides& step : steps) all.insert(all.end(), step.begin(), step.end());
  return all;
}

/// A nested list of numbers, row-major.
Numbers flattened(const nlohmann::json& list) {
  if (list.is_number()) return {list.get<double>()};
  Numbers all;
  for (const auto& part : list)
    for (double x : flattened(part)) all.push_back(x);
  return all;
}

struct Sums {
  Numbers rows, columns;
  Sums(const Numbers& matrix, int64_t n, int64_t m) : rows(static_cast<size_t>(n)), columns(static_cast<size_t>(m)) {
    for (size_t k = 0; k < matrix.size(); ++k) {
      rows[k / columns.size()] += matrix[k];
      columns[k % columns.size()] += matrix[k];
    }
  }
};

const InspectedMode& mode(const Inspection& i, const std::string& name) {
  return *std::find_if(i.modes.begin(), i.modes.end(), [&](const auto& m) { return m.name == name; });
}

}  // namespace

TEST_CASE("20 random matrices: every number agrees with a recomputation, and the contributions sum to the gradient") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const int kind = static_cast<int>(seed % 4);  // square, rectangular, masked, sharp
    const auto n = static_cast<int64_t>(2 + seed % 7), m = kind == 1 ? n + 3 - static_cast<int64_t>(seed % 5) : n;
    InspectionOptions options{.half_steps = std::array{1, 3, 5, 2, 9, 4}[seed % 6], .seed = seed};
    if (kind == 2) options.masked_queries = {0}, options.masked_keys = n > 3 ? std::vector<int64_t>{1, n - 1} : std::vector<int64_t>{};
    const Tensor scores = randn({n, std::max<int64_t>(m, 1)}, seed, kind == 3 ? 20 : 1);
    INFO("seed " << seed << ", scores " << scores.shape() << ", half-steps " << options.half_steps);
    const Inspection i = inspect(scores, options);
    const Recomputed r(scores, i.cotangent, options.half_steps, i.rows, i.columns);
    REQUIRE(i.steps.size() == static_cast<size_t>(options.half_steps));
    const double rows = static_cast<double>(i.rows.size()), columns = static_cast<double>(i.columns.size());
    for (size_t k = 0; k < i.steps.size(); ++k) {
      const InspectedStep& s = i.steps[k];
      INFO("half-step " << k + 1);
      CHECK(s.on_rows == (k % 2 == 0));
      CHECK(difference(s.f, r.f[k]) < 1e-10);
      CHECK(difference(s.g, r.g[k]) < 1e-10);
      CHECK(difference(s.plan, r.plan[k]) < 1e-10);
      CHECK(difference(s.f_cotangent, r.f_cotangent[k]) < 1e-10);
      CHECK(difference(s.g_cotangent, r.g_cotangent[k]) < 1e-10);
      CHECK(difference(s.contribution, r.contribution[k]) < 1e-10);
      const Sums sums(s.plan, i.n, i.m);
      CHECK(difference(s.row_sums, sums.rows) < 1e-10);
      CHECK(difference(s.column_sums, sums.columns) < 1e-10);
      double row_error = 0, column_error = 0, dual = 0, entropy = 0;
      for (int64_t a : i.rows) {
        row_error = std::max(row_error, std::abs(sums.rows[Recomputed::idx(a)] - 1));
        dual += s.f[Recomputed::idx(a)];
        for (int64_t b : i.columns)
          if (const double p = s.plan[r.at(a, b)] / sums.rows[Recomputed::idx(a)]; p > 0) entropy -= p * std::log(p) / rows;
      }
      for (int64_t b : i.columns) {
        column_error = std::max(column_error, std::abs(sums.columns[Recomputed::idx(b)] * columns / rows - 1));
        dual += s.g[Recomputed::idx(b)] * rows / columns;
      }
      CHECK(std::abs(s.row_error - row_error) < 1e-10);
      CHECK(std::abs(s.column_error - column_error) < 1e-10);
      CHECK(std::abs(s.dual - dual) < 1e-10 * std::max(1.0, std::abs(dual)));
      CHECK(std::abs(s.entropy - entropy) < 1e-10);
      CHECK(s.largest == *std::max_element(s.plan.begin(), s.plan.end()));
      CHECK(std::abs(i.convergence.column_error[k] - s.column_error) < 1e-10);
      CHECK(std::abs(i.convergence.row_error[k] - s.row_error) < 1e-10);
      CHECK(std::abs(i.convergence.dual[k] - s.dual) < 1e-10 * std::max(1.0, std::abs(dual)));
      if (k > 0) CHECK(s.dual >= i.steps[k - 1].dual - 1e-12 * std::abs(dual));
    }
    const auto json = nlohmann::json::parse(inspection_json(i, {}).dump());
    const auto in_json = [&](const char* name) { return flattened(json.at(name)); };
    CHECK(difference(in_json("f"), joined(r.f)) < 1e-10);
    CHECK(difference(in_json("g"), joined(r.g)) < 1e-10);
    CHECK(difference(in_json("P"), joined(r.plan)) < 1e-10);
    CHECK(difference(in_json("gbar_f"), joined(r.f_cotangent)) < 1e-10);
    CHECK(difference(in_json("gbar_g"), joined(r.g_cotangent)) < 1e-10);
    CHECK(difference(in_json("dC_step"), joined(r.contribution)) < 1e-10);
    CHECK(difference(in_json("dC_direct"), r.direct) < 1e-10);
    CHECK(difference(in_json("dC"), r.total) < 1e-10);
    for (size_t k = 0; k < i.steps.size(); ++k) {
      const InspectedStep& s = i.steps[k];
      const Numbers shown = {in_json("err_row")[k], in_json("err_col")[k], in_json("dual")[k], in_json("entropy")[k], in_json("largest")[k]};
      CHECK(shown == Numbers{s.row_error, s.column_error, s.dual, s.entropy, s.largest});
      CHECK(flattened(json["row_sum"][k]) == s.row_sums);
      CHECK(flattened(json["col_sum"][k]) == s.column_sums);
    }
    CHECK(difference(i.direct, r.direct) < 1e-10);
    CHECK(difference(i.gradient, r.total) < 1e-10);
    CHECK(difference(i.contributions_from(1), i.gradient) < 1e-12);
    CHECK(i.contributions_difference < 1e-12);
    CHECK(i.fused_plan_difference < 1e-12);
    CHECK(mode(i, "unrolled").gradient == i.gradient);
    CHECK(difference(mode(i, "finite_differences").gradient, i.gradient) < 1e-8 * std::max(1.0, largest(i.gradient)));
    for (int64_t a = 0; a < i.n; ++a)
      for (int64_t b = 0; b < i.m; ++b)
        if (!std::count(i.rows.begin(), i.rows.end(), a) || !std::count(i.columns.begin(), i.columns.end(), b)) {
          CHECK(i.last().plan[r.at(a, b)] == 0);
          CHECK(i.gradient[r.at(a, b)] == 0);
        }
  }
}

TEST_CASE("spectra: softmax has rank n(m-1), the limit is symmetric of rank (n-1)(m-1)") {
  for (const auto& shape : {Shape{3, 3}, Shape{4, 6}, Shape{5, 2}}) {
    const int64_t n = shape[0], m = shape[1];
    CAPTURE(n, m);
    const Inspection i = inspect(randn(shape, 7), {.half_steps = 3});
    REQUIRE(i.jacobians.size() == 3);
    const InspectedJacobian &softmax = i.jacobians[0], &three = i.jacobians[1], &limit = i.jacobians[2];
    for (const InspectedJacobian* j : {&softmax, &three, &limit}) {
      CAPTURE(j->name);
      CHECK(j->rank == j->theory_rank);
      CHECK(j->singular_values.size() == static_cast<size_t>(n * m));
      CHECK(std::is_sorted(j->singular_values.rbegin(), j->singular_values.rend()));
    }
    CHECK(softmax.rank == n * (m - 1));
    CHECK(limit.rank == (n - 1) * (m - 1));
    CHECK(softmax.asymmetry < 1e-15);
    CHECK(three.asymmetry > 1e-3);
    CHECK(limit.asymmetry < 1e-12);
  }
  for (int l : {2, 4, 5})
    for (const auto& shape : {Shape{4, 6}, Shape{5, 2}}) {
      const InspectedJacobian j = inspect(randn(shape, 7), {.half_steps = l}).jacobians[1];
      CHECK(j.rank == j.theory_rank);
      CHECK(j.rank == std::min(shape[0] * (shape[1] - 1), (shape[0] - 1) * shape[1]));
    }
  // The blocks of softmax's Jacobian are diag(p) - p p': for equal scores m - 1 singular values 1/m each.
  const Inspection flat = inspect(Tensor({2, 4}, DType::f64), {.half_steps = 1});
  REQUIRE(flat.jacobians[0].singular_values.size() == 8);
  for (size_t k = 0; k < 8; ++k) CHECK(flat.jacobians[0].singular_values[k] == Approx(k < 6 ? 0.25 : 0).margin(1e-15));
  CHECK(inspect(randn({21, 20}, 1), {}).jacobians.empty());
}

TEST_CASE("singular values are those of a Jacobian computed row by row: their squares and fourth powers sum to its traces") {
  const Tensor scores = randn({3, 4}, 8);
  for (const int l : {1, 3, 4}) {
    std::vector<Wides> jacobian;
    for (size_t k = 0; k < 12; ++k) {
      Numbers unit(12);
      unit[k] = 1;
      jacobian.push_back(Recomputed(scores, unit, l, {0, 1, 2}, {0, 1, 2, 3}).total);
    }
    Wide squares = 0, fourths = 0;  // traces of J J' and of its square
    for (const Wides& a : jacobian)
      for (const Wides& b : jacobian) {
        const Wide product = std::inner_product(a.begin(), a.end(), b.begin(), Wide(0));
        fourths += product * product;
        if (&a == &b) squares += product;
      }
    const Inspection i = inspect(scores, {.half_steps = l});
    const InspectedJacobian& shown = i.jacobians[l == 1 ? 0 : 1];
    double shown_squares = 0, shown_fourths = 0;
    for (double s : shown.singular_values) shown_squares += s * s, shown_fourths += s * s * s * s;
    CHECK(shown_squares == Approx(static_cast<double>(squares)).epsilon(1e-10));
    CHECK(shown_fourths == Approx(static_cast<double>(fourths)).epsilon(1e-10));
  }
}

TEST_CASE("the Jacobian grows symmetric with the half-steps") {
  double before = 1;
  for (int l : {3, 5, 9, 21, 61}) {
    const double asymmetry = inspect(randn({4, 4}, 3, 0.8), {.half_steps = l}).jacobians[1].asymmetry;
    CHECK(asymmetry < before / 2);
    before = asymmetry;
  }
  CHECK(before < 1e-9);
}

TEST_CASE("the column error falls by sigma_2 squared per two half-steps, also of rectangles") {
  for (const auto& shape : {Shape{6, 6}, Shape{4, 7}, Shape{9, 5}}) {
    const Inspection i = inspect(randn(shape, 30), {.half_steps = 3});
    REQUIRE(i.limit.converged);
    CHECK(i.limit.column_error <= 1.01e-13);
    const Numbers& error = i.convergence.column_error;
    size_t late = 2;
    while (late + 2 < error.size() && error[late] > 1e-8) late += 2;
    CHECK(error[late] / error[late - 2] == Approx(i.limit.sigma2 * i.limit.sigma2).epsilon(0.05));
    for (size_t k = 1; k < error.size(); k += 2) CHECK(error[k] < 1e-12);
    for (size_t k = 0; k < error.size(); k += 2) CHECK(i.convergence.row_error[k] < 1e-12);
  }
}

TEST_CASE("gradients: rows sum to 0 at odd counts, columns in the limit, and the shortcuts are told apart") {
  const Inspection i = inspect(randn({5, 6}, 6), {.half_steps = 5});
  CHECK(largest(Sums(i.gradient, 5, 6).rows) < 1e-14);
  CHECK(largest(Sums(i.gradient, 5, 6).columns) > 1e-4);
  CHECK(largest(Sums(i.limit.gradient, 5, 6).rows) < 1e-12);
  CHECK(largest(Sums(i.limit.gradient, 5, 6).columns) < 1e-12);
  CHECK(mode(i, "implicit").difference > 1e-4);
  CHECK(mode(i, "frozen").difference > 0.05);
  CHECK(mode(i, "frozen").cosine < 0.999);
  CHECK(i.convergence.implicit_difference.front() > 0.1);
  CHECK(i.convergence.implicit_difference.back() < 1e-6);
  CHECK(i.convergence.frozen_difference.back() > 0.05);  // does not converge to the true gradient
  // Potentials of 3 row and 2 column steps and four statistics; step by step the tape keeps at least one matrix per half-step.
  CHECK(mode(i, "unrolled").bytes_kept == 8 * (3 * 5 + 2 * 6 + 4));
  CHECK(i.step_by_step_bytes > 5 * 8 * 5 * 6);
}

TEST_CASE("a tolerance stops early, -inf excludes, and a hidden pair stays hidden") {
  const Inspection stopped = inspect(randn({4, 4}, 40, 0.3), {.half_steps = 99, .tolerance = 1e-3});
  CHECK(stopped.half_steps < 99);
  CHECK(stopped.steps.size() == static_cast<size_t>(stopped.half_steps));
  CHECK(stopped.last().column_error <= 1e-3);

  Tensor scores = randn({4, 5}, 41);
  for (int64_t i = 0; i < 4; ++i) scores.span<double>()[static_cast<size_t>(i * 5 + 2)] = -std::numeric_limits<double>::infinity();
  const Inspection a = inspect(scores, {.half_steps = 5}), b = inspect(randn({4, 5}, 41), {.half_steps = 5, .masked_keys = {2}});
  CHECK(a.columns == std::vector<int64_t>{0, 1, 3, 4});
  CHECK(difference(a.last().plan, b.last().plan) == 0);
  CHECK(difference(a.gradient, b.gradient) == 0);
  CHECK_THAT(a.warnings.back(), Contains("1 of 5 columns are excluded"));

  Tensor pair = randn({3, 3}, 42);
  pair.span<double>()[1] = -std::numeric_limits<double>::infinity();
  const Inspection hidden = inspect(pair, {.half_steps = 3});
  for (const InspectedStep& s : hidden.steps) CHECK(s.plan[1] == 0);
  CHECK(hidden.gradient[1] == 0);
  CHECK(hidden.contributions_difference < 1e-12);
}

TEST_CASE("warnings say in words what is wrong, and nothing when nothing is") {
  const auto words = [](double scale, int l) {
    std::string all;
    for (const std::string& w : inspect(randn({6, 6}, 50, scale), {.half_steps = l}).warnings) all += w + "\n";
    return all;
  };
  CHECK_THAT(words(4, 3), Contains("columns still off by ") && Contains(": scores too sharp for 3 half-steps"));
  CHECK_THAT(words(0.3, 2), Contains("ends on columns"));
  CHECK_THAT(words(40, 9), Contains("close to a permutation"));
  CHECK_THAT(words(2, 3), Contains("the implicit gradient is off by") && Contains("the frozen gradient"));
  CHECK_THAT(words(300, 9), Contains("not converged after 20001 half-steps") || Contains("the gradient vanishes"));
  CHECK_THAT(words(0.2, 21), !Contains("columns") && !Contains("implicit"));
}

TEST_CASE("what cannot be inspected is refused with a sentence") {
  const Tensor scores = randn({2, 3}, 1);
  CHECK_THROWS_WITH(inspect(randn({2, 3, 4}, 1), {}), Contains("inspect: scores must be a matrix") && Contains("(2,3,4)"));
  CHECK_THROWS_WITH(inspect(Tensor({2, 3}), {}), Contains("f64") && Contains("f32"));
  CHECK_THROWS_WITH(inspect(scores, {.half_steps = 0}), Contains("half-steps") && Contains("got 0"));
  CHECK_THROWS_WITH(inspect(scores, {.masked_keys = {3}}), Contains("masked key must lie in 0..2, got 3"));
  CHECK_THROWS_WITH(inspect(scores, {.masked_queries = {0, 1}}), Contains("all of the 2 x 3 scores are excluded"));
  CHECK_THROWS_WITH(inspect(scores, {.cotangent = randn({3, 2}, 1)}), Contains("cotangent") && Contains("(3,2)"));
  for (double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Tensor broken = randn({2, 3}, 1);
    broken.span<double>()[4] = bad;
    CHECK_THROWS_WITH(inspect(broken, {}), Contains("at row 1, column 1"));
  }
}
