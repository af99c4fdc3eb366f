// The paper's propositions as numbers with known answers, and the program that shows them. What takes long is in slow_theory.cpp.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "core/file.h"
#include "program.h"
#include "tools/theory/demonstration.h"
#include "tools/theory/figure_one.h"
#include "tools/theory/heat_flow.h"
#include "tools/theory/propositions.h"
#include "tools/theory/rank_decay.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

double largest_difference(const Tensor& a, const Tensor& b) {
  double largest = 0;
  for (size_t i = 0; i < a.span<double>().size(); ++i) largest = std::max(largest, std::abs(a.span<double>()[i] - b.span<double>()[i]));
  return largest;
}

Tensor squared_distances(const Particles& line, double epsilon) {
  const size_t n = line.points.size();
  std::vector<double> scores;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) scores.push_back(-std::pow(line.points[i] - line.points[j], 2) / (2 * epsilon));
  return matrix(static_cast<int64_t>(n), static_cast<int64_t>(n), scores);
}

}  // namespace

TEST_CASE("Proposition 1: row and column constants vanish in the limit, at the rate of Sinkhorn itself") {
  for (uint64_t seed : {1, 2, 3}) {
    const Invariance result = measure_invariance(seed);
    CHECK(result.difference.back() <= 1e-12);
    CHECK(result.distance_difference.back() <= 1e-12);
    CHECK(result.difference.front() > 0.1);
    // From 41 to 61 half-steps, ten times two: some f and g hardly touch the slowest direction and vanish even sooner.
    CHECK(std::pow(result.distance_difference[8] / result.distance_difference[7], 0.1) == Approx(result.rate).epsilon(0.01));
    CHECK(std::pow(result.difference[8] / result.difference[7], 0.1) < 1.01 * result.rate);
  }
}

TEST_CASE("Proposition 2: both energies fall at each of 500 steps of 0.02, and the fields are their gradients") {
  const Tensor points = random_points(3, 24, 2, 0.8), interaction = matrix(2, 2, {1, 0.3, 0.3, 0.6});
  for (const Normalisation normalisation : {Normalisation::none, Normalisation::sinkhorn}) {
    const ParticleFlow flow = run_flow(points, interaction, normalisation, 500, 0.02);
    REQUIRE(flow.energy.size() == 501);
    CHECK(flow.largest_rise == 0);
    CHECK(std::ranges::is_sorted(flow.energy, std::greater()));
    CHECK(flow.energy.front() > flow.energy.back() + 0.05);
    CHECK(flow.gradient_gap < 1e-9);
    CHECK(flow.positions.back().size() == 48);
  }
  // The gap would be seen: a field of the wrong interaction is not the gradient.
  const Tensor other = matrix(2, 2, {1, 0.4, 0.2, 0.6});
  CHECK(run_flow(points, other, Normalisation::sinkhorn, 0, 0.02).gradient_gap > 1e-3);
  CHECK(std::isnan(run_flow(points, interaction, Normalisation::softmax, 0, 0.02).gradient_gap));
}

TEST_CASE("Proposition 3: the Jacobian of softmax's field is not symmetric, the other two are; the tape agrees with differences") {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Tensor points = random_points(seed, 8, 2), interaction = random_interaction(seed, 2);
    CHECK(field_jacobian(points, interaction, Normalisation::none).asymmetry < 1e-9);
    CHECK(field_jacobian(points, interaction, Normalisation::softmax).asymmetry > 0.1);
    CHECK(field_jacobian(points, interaction, Normalisation::sinkhorn).asymmetry < 1e-9);
  }
  const Tensor points = random_points(9, 5, 2), interaction = random_interaction(9, 2);
  for (const Normalisation normalisation : {Normalisation::none, Normalisation::softmax, Normalisation::sinkhorn}) {
    const FieldJacobian jacobian = field_jacobian(points, interaction, normalisation);
    constexpr double kStep = 1e-5;
    for (const size_t column : {0, 3, 8}) {
      std::vector<double> fields[2];
      for (int side : {0, 1}) {
        const Tensor moved = points.clone();
        moved.span<double>()[column] += side == 0 ? -kStep : kStep;
        Tape tape(DType::f64);
        fields[side] = to_doubles(tape.value(attention_field(tape.leaf(moved), tape.leaf(interaction), normalisation)));
      }
      for (size_t row = 0; row < 10; ++row)
        CHECK(jacobian.values[row * 10 + column] == Approx((fields[1][row] - fields[0][row]) / (2 * kStep)).margin(1e-7));
    }
  }
}

TEST_CASE("the symmetric iteration finds the limit of plain Sinkhorn, far sooner") {
  const Particles line = quantile_particles({}, 60);
  const Tensor scores = squared_distances(line, 0.05);
  const WeightedPlan plan = symmetric_sinkhorn(scores, line.weights);
  Tape tape(DType::f64);
  const Var plain = sinkhorn(tape.leaf(scores), {.iterations = 100001, .tolerance = 1e-9});
  CHECK(largest_difference(plan.plan, copy_of(plain)) < 1e-8);
  CHECK(plan.marginal_error < 1e-8);
  CHECK(plan.half_steps < 60);
  CHECK(sinkhorn_report(plain).most_half_steps > 10 * plan.half_steps);
}

TEST_CASE("weights are those of the measure: doubling a particle's weight is the same as having it twice") {
  const std::vector<double> at = {-1, -0.2, 0.5, 1.4};
  const WeightedPlan weighted = symmetric_sinkhorn(squared_distances({at, {}}, 0.3), {0.2, 0.4, 0.2, 0.2});
  const WeightedPlan repeated = symmetric_sinkhorn(squared_distances({{-1, -0.2, -0.2, 0.5, 1.4}, {}}, 0.3), {0.2, 0.2, 0.2, 0.2, 0.2});
  CHECK(weighted.plan.span<double>()[0] == Approx(repeated.plan.span<double>()[0]).epsilon(1e-8));
  CHECK(weighted.plan.span<double>()[1] == Approx(2 * repeated.plan.span<double>()[1]).epsilon(1e-8));
  const Tensor rows = weighted_softmax(squared_distances({at, {}}, 0.3), {0.2, 0.4, 0.2, 0.2});
  CHECK(rows.span<double>()[1] / rows.span<double>()[0] == Approx(2 * std::exp(-0.64 / 0.6)));
}

TEST_CASE("for a Gaussian the constants are known at every epsilon") {
  // Sinkhorn's plan of N(0, s^2) with itself is Gaussian with correlation r, r / (1 - r^2) = s^2 / epsilon; softmax's posterior mean is linear.
  constexpr double kEpsilon = 0.3;
  Particles line;
  double total = 0;
  for (int i = -120; i <= 120; ++i) {
    line.points.push_back(0.06 * i);
    line.weights.push_back(std::exp(-0.5 * line.points.back() * line.points.back()));
    total += line.weights.back();
  }
  for (double& weight : line.weights) weight /= total;
  std::vector<double> potentials;
  const double r = (std::sqrt(kEpsilon * kEpsilon + 4) - kEpsilon) / 2;
  const auto slope = [&](Normalisation normalisation) {
    return corrected_field(line, identity(1), kEpsilon, normalisation, potentials)[140] / line.points[140];
  };
  CHECK(slope(Normalisation::sinkhorn) == Approx((1 - r) / kEpsilon).epsilon(1e-7));
  CHECK(slope(Normalisation::softmax) == Approx(1 / (1 + kEpsilon)).epsilon(1e-7));
}

TEST_CASE("the bump's score is the gradient of its logarithm, and draws follow it") {
  for (const int64_t dim : {1, 2}) {
    const BumpDensity density{.dim = dim};
    const double x[2] = {0.7, -1.1};
    double score[2];
    density.score(x, score);
    for (int64_t a = 0; a < dim; ++a) {
      double up[2] = {x[0], x[1]}, down[2] = {x[0], x[1]};
      up[a] += 1e-6;
      down[a] -= 1e-6;
      CHECK(score[a] == Approx((std::log(density.value(up)) - std::log(density.value(down))) / 2e-6).epsilon(1e-7));
    }
    const Particles grid = weighted_grid(density, 60), draws = random_draws(density, 4000, 1);
    const auto moment = [&](const Particles& p, int power) {
      double sum = 0;
      for (size_t i = 0; i < p.weights.size(); ++i) sum += p.weights[i] * std::pow(p.points[i * static_cast<size_t>(dim)], power);
      return sum;
    };
    CHECK(moment(grid, 0) == Approx(1));
    CHECK(moment(draws, 1) == Approx(moment(grid, 1)).margin(0.06));
    CHECK(moment(draws, 2) == Approx(moment(grid, 2)).epsilon(0.08));
  }
}

TEST_CASE("Theorem 1 and Proposition 4 in one dimension: constants 1/2 and 1, from below, with errors in proportion to epsilon") {
  const DiffusionLimit limit = diffusion_limit({.dim = 1}, 300, identity(1), 0.08, 5);
  CHECK(limit.constants.back().sinkhorn.field == Approx(0.5).epsilon(0.01));
  CHECK(limit.constants.back().sinkhorn.spread == Approx(0.5).epsilon(0.01));
  CHECK(limit.sinkhorn == Approx(0.5).epsilon(1e-3));
  CHECK(limit.softmax == Approx(1).epsilon(0.01));
  for (size_t k = 1; k < limit.constants.size(); ++k) {
    CHECK((0.5 - limit.constants[k].sinkhorn.field) / (0.5 - limit.constants[k - 1].sinkhorn.field) == Approx(0.5).margin(0.05));
    CHECK(limit.constants[k].softmax.field > limit.constants[k - 1].softmax.field);
  }
}

TEST_CASE("a layer near rank one cubes the distance from it, softmax or Sinkhorn; both lose rank over depth") {
  for (const int half_steps : {1, 5}) {
    for (uint64_t seed : {1, 2, 3}) CHECK(contraction_order(seed, half_steps) == Approx(3).epsilon(0.01));
    const RankDecay decay = measure_rank_decay(1, half_steps, 7);
    REQUIRE(decay.residual.size() == 8);
    CHECK(decay.residual.front() > 0.9);
    CHECK(decay.residual.back() < 1e-12);
    CHECK(decay.effective_rank.front() > 12);
    CHECK(decay.effective_rank.back() == Approx(1));
  }
}

TEST_CASE("Figure 1 has the weights of the authors' construction, computed with numpy") {
  const FigureOne figure = figure_one();
  CHECK(links(figure.kernel) == 3);
  CHECK(links(figure.softmax) == 19);
  CHECK(links(figure.sinkhorn) == 64);
  const std::vector<double> largest_of_query = {0.05586838689304909, 0.08712735605013822, 0.07854232185685754, 0.07543527811015807,
                                                0.07256067996148652, 0.05462906086697197, 0.05087921778289008, 0.047815302856965,
                                                0.06955915415730453, 0.07181504227244827};
  for (size_t i = 0; i < 10; ++i) {
    const auto row = figure.sinkhorn.begin() + static_cast<std::ptrdiff_t>(10 * i);
    CHECK(*std::max_element(row, row + 10) == Approx(largest_of_query[i]).epsilon(1e-10));
  }
  CHECK(std::ranges::max(figure.softmax) == Approx(0.09999999999975616).epsilon(1e-12));
}

TEST_CASE("a check says what is known and fails when the number does not agree, NaN too") {
  CHECK(at_most("x", 1e-13, 1e-9).known == "at most 1e-9");
  CHECK(close_to("x", 0.496, 0.5, 0.01).ok);
  CHECK(!close_to("x", 0.494, 0.5, 0.01).ok);
  CHECK(within("x", 1.2, 1, 0.25).known == "1 \u00b1 0.25");
  for (const Check& check : {at_most("x", std::nan(""), 1), at_least("x", std::nan(""), 1), close_to("x", std::nan(""), 1, 0.5),
                             within("x", std::nan(""), 1, 0.5), at_most("x", 2, 1), at_least("x", 0, 1), within("x", 2, 1, 0.5)})
    CHECK(!check.ok);
  CHECK(!Demonstration{.checks = {at_most("x", 0, 1), at_most("x", 2, 1)}}.ok());
}

TEST_CASE("sinkgrad theory prints its checks, writes page and numbers, and refuses what it does not know") {
  const TemporaryFolder folder;
  const auto theory = [](const std::string& arguments) { return run("theory " + arguments); };
  const auto read = [&](const char* name) { return read_file(folder / name, 1 << 24); };
  const Result both = theory("invariance figure1 --seed 2 --out " + (folder / "page.html"));
  REQUIRE(both.code == 0);
  CHECK_THAT(both.out, Contains("Proposition 1: invariance") && Contains("links of Sinkhorn") && !Contains("FAILED"));
  const std::string page = read("page.html");
  CHECK_THAT(page, Contains("<h2 id=\"section-1\">Proposition 1") && Contains("prefers-color-scheme:dark") && Contains("role=\"img\"") &&
                       Contains("<desc>64 links between queries and keys") && !Contains("<script") && !Contains("src="));
  const auto json = nlohmann::json::parse(read("page.json"));
  CHECK(json["schema"] == 1);
  CHECK(json["demonstrations"]["invariance"]["ok"] == true);
  CHECK(json["demonstrations"]["invariance"]["data"]["difference"].back() <= 1e-12);
  CHECK(json["demonstrations"]["figure1"]["data"]["sinkhorn"].size() == 100);

  const Result unknown = theory("invarance --out " + (folder / "no.html"));
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("unknown demonstration 'invarance'; did you mean 'invariance'?"));
  CHECK(theory("invariance --out " + (folder / "no.pdf")).code == 2);
  CHECK(theory("invariance --out " + (folder / "absent/no.html")).code == 5);
  CHECK(!std::filesystem::exists(folder / "no.html"));
}
