// The diffusion limit in two dimensions, random particles, and flows against the heat equation. Label slow: a few minutes.
#include <catch2/catch.hpp>
#include <cmath>

#include "tools/theory/demonstration.h"
#include "tools/theory/heat_flow.h"

using namespace sinkgrad;

TEST_CASE("Theorem 1 and Proposition 4 in two dimensions, with an interaction that is no multiple of the identity") {
  const DiffusionLimit limit = diffusion_limit({.dim = 2}, 48, matrix(2, 2, {1, 0.25, 0.25, 0.75}), 0.08, 4);
  CHECK(limit.constants.back().sinkhorn.field == Approx(0.5).epsilon(0.01));
  CHECK(limit.sinkhorn == Approx(0.5).epsilon(0.01));
  CHECK(limit.softmax == Approx(1).epsilon(0.01));
}

TEST_CASE("random particles tend to the grid's constant within their error bars") {
  for (const auto& [dim, nodes, epsilon] : {std::tuple(1, 200, 0.04), std::tuple(2, 32, 0.16)}) {
    const RandomDiffusion random = random_diffusion({.dim = dim}, {200, 400, 800}, nodes, 16, epsilon, 5);
    CHECK(std::abs(random.sinkhorn_limit.mean - random.grid.sinkhorn.spread) < 4 * random.sinkhorn_limit.error);
    CHECK(std::abs(random.softmax_limit.mean - random.grid.softmax.spread) < 4 * random.softmax_limit.error);
    CHECK(random.sinkhorn_limit.error < 0.01);
    CHECK(random.softmax_limit.error < 0.05);
    CHECK(random.sinkhorn[0].mean < random.sinkhorn[2].mean);
  }
}

TEST_CASE("particles follow the heat equation, with constant 1/2 for Sinkhorn and 1 for softmax, not the other way round") {
  const GaussianMixture start;
  const Particles line = quantile_particles(start, 150);
  for (const auto& [normalisation, c] : {std::pair(Normalisation::sinkhorn, 0.5), std::pair(Normalisation::softmax, 1.0)}) {
    const HeatFlow flow = run_heat_flow(line, normalisation, 0.02, 0.4);
    const double right = distance_to(start.after(0.4, c), flow.positions.back()),
                 wrong = distance_to(start.after(0.4, 1.5 - c), flow.positions.back());
    CHECK(right < 0.05 * distance_to(start.after(0.4, c), line.points));
    CHECK(right < 0.15 * wrong);
  }
  const Particles plane = grid_particles({.dim = 2}, 0.16);
  for (const auto& [normalisation, c] : {std::pair(Normalisation::sinkhorn, 0.5), std::pair(Normalisation::softmax, 1.0)}) {
    const double coarse = run_heat_flow(plane, normalisation, 0.1, 0.4).constant(), fine = run_heat_flow(plane, normalisation, 0.05, 0.4).constant();
    CHECK(2 * fine - coarse == Approx(c).epsilon(0.02));
    CHECK(fine > coarse);
  }
}

TEST_CASE("every demonstration agrees with the known answers and draws its figures") {
  for (const DemonstrationEntry& entry : demonstrations()) {
    const Demonstration demo = entry.run(1);
    for (const Check& check : demo.checks) {
      INFO(entry.name << ": " << check.what << ": " << check.value << ", known: " << check.known);
      CHECK(check.ok);
    }
    CHECK(!demo.figures.empty());
    CHECK(!demo.data.empty());
  }
}
