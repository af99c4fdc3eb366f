// Theorem 1 and Proposition 4 as checks and figures: the constant on grids and from random particles, and flows against the heat equation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/theory/demonstration.h"
#include "tools/theory/heat_flow.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

/// c against epsilon for both normalisations, with the known limits.
std::string constant_chart(const DiffusionLimit& limit, int64_t dim) {
  Series sinkhorn{.label = "Sinkhorn", .points = true}, softmax{.label = "softmax", .points = true};
  for (size_t k = 0; k < limit.epsilon.size(); ++k) {
    sinkhorn.x.push_back(limit.epsilon[k]);
    sinkhorn.y.push_back(limit.constants[k].sinkhorn.field);
    softmax.x.push_back(limit.epsilon[k]);
    softmax.y.push_back(limit.constants[k].softmax.field);
  }
  return line_chart({.title = fmt::format("Weighted grid in {} dimension{}", dim, dim == 1 ? "" : "s"),
                     .description = fmt::format("the diffusion constant as epsilon falls: Sinkhorn ends at {}, softmax at {}",
                                                format_number(sinkhorn.y.back()), format_number(softmax.y.back())),
                     .x_label = "\u03b5 (logarithmic)",
                     .y_label = "diffusion constant c",
                     .series = {sinkhorn, softmax},
                     .references = {{0.5, "1/2: Theorem 1"}, {1, "1: Proposition 4"}},
                     .log_x = true,
                     .width = 560,
                     .height = 340});
}

/// The corrected field of a one-dimensional grid beside -c grad log rho.
std::string field_chart(double epsilon) {
  const BumpDensity density;
  const Particles grid = weighted_grid(density, 400);
  std::vector<double> potentials;
  LineChart chart{.title = fmt::format("The field at \u03b5 = {:g}", epsilon),
                  .description = "velocities of both normalisations over position, on top of the predicted ones",
                  .x_label = "position",
                  .y_label = "velocity",
                  .width = 560,
                  .height = 340};
  for (const auto& [normalisation, c] : {std::pair(Normalisation::sinkhorn, 0.5), std::pair(Normalisation::softmax, 1.0)}) {
    const std::vector<double> field = corrected_field(grid, identity(1), epsilon, normalisation, potentials);
    const int color = normalisation == Normalisation::sinkhorn ? 0 : 1;
    Series measured{.label = name_of(normalisation), .color = color};
    Series predicted{.label = c == 1 ? "\u2212\u2207\u03c1/\u03c1" : "\u2212\u00bd \u2207\u03c1/\u03c1", .dashed = true, .color = 6};
    for (size_t i = 0; i < field.size(); i += 4) {
      if (std::abs(grid.points[i]) > 2.2) continue;
      double score = 0;
      density.score(&grid.points[i], &score);
      measured.x.push_back(grid.points[i]);
      measured.y.push_back(field[i]);
      predicted.x.push_back(grid.points[i]);
      predicted.y.push_back(-c * score);
    }
    chart.series.push_back(std::move(measured));
    chart.series.push_back(std::move(predicted));
  }
  return line_chart(chart);
}

/// c against the number of random particles: mean and standard error, and the grid that they tend to.
std::string random_chart(const RandomDiffusion& random, int64_t dim) {
  LineChart chart{.title = fmt::format("Random particles in {} dimension{}, \u03b5 = {:g}", dim, dim == 1 ? "" : "s", random.epsilon),
                  .description = "the diffusion constant over the number of particles with error bars, rising to the value of the grid",
                  .x_label = "particles (logarithmic)",
                  .y_label = "diffusion constant c",
                  .references = {{random.grid.sinkhorn.spread, "grid, Sinkhorn"}, {random.grid.softmax.spread, "grid, softmax"}},
                  .log_x = true,
                  .note = "Band: one standard error of the mean. A particle's weight on itself slows it; that bias falls like 1/n.",
                  .width = 560,
                  .height = 340};
  for (const auto& [label, values] : {std::pair("Sinkhorn", &random.sinkhorn), std::pair("softmax", &random.softmax)}) {
    Series series{.label = label, .points = true};
    for (size_t k = 0; k < values->size(); ++k) {
      const Estimate& e = (*values)[k];
      series.x.push_back(static_cast<double>(random.counts[k]));
      series.y.push_back(e.mean);
      series.low.push_back(e.mean - e.error);
      series.high.push_back(e.mean + e.error);
    }
    chart.series.push_back(std::move(series));
  }
  return line_chart(chart);
}

nlohmann::ordered_json json_of(const DiffusionLimit& limit) {
  nlohmann::ordered_json rows;
  for (size_t k = 0; k < limit.epsilon.size(); ++k)
    rows.push_back({{"epsilon", limit.epsilon[k]},
                    {"sinkhorn", limit.constants[k].sinkhorn.field},
                    {"softmax", limit.constants[k].softmax.field},
                    {"sinkhorn_spread", limit.constants[k].sinkhorn.spread},
                    {"softmax_spread", limit.constants[k].softmax.spread}});
  return {{"grid", rows}, {"sinkhorn_limit", limit.sinkhorn}, {"softmax_limit", limit.softmax}};
}

nlohmann::ordered_json json_of(const RandomDiffusion& random) {
  nlohmann::ordered_json rows;
  for (size_t k = 0; k < random.counts.size(); ++k)
    rows.push_back({{"particles", random.counts[k]},
                    {"sinkhorn", random.sinkhorn[k].mean},
                    {"sinkhorn_error", random.sinkhorn[k].error},
                    {"softmax", random.softmax[k].mean},
                    {"softmax_error", random.softmax[k].error}});
  return {{"epsilon", random.epsilon}, {"random", rows}};
}

void check_random(Demonstration& demo, const RandomDiffusion& random, int64_t dim) {
  constexpr double kErrors = 4;
  const auto add = [&](const char* name, const Estimate& e, double grid) {
    demo.checks.push_back(within(fmt::format("{}-D, {} to \u221e random particles at \u03b5 = {:g}, {}: c \u00b1 {:.2g} against the grid's", dim,
                                             random.counts.front(), random.epsilon, name, e.error),
                                 e.mean, grid, kErrors * e.error));
  };
  add("Sinkhorn", random.sinkhorn_limit, random.grid.sinkhorn.spread);
  add("softmax", random.softmax_limit, random.grid.softmax.spread);
}

GaussianMixture mixture(int64_t dim) { return {.dim = dim}; }

/// Every eighth particle over time, and where the heat equation with constant c sends it.
std::string path_chart(const HeatFlow& flow, const char* name, double c) {
  const size_t n = flow.positions[0].size();
  LineChart chart{.title = fmt::format("{} against c = {:g}", name, c),
                  .description = "positions of particles over time beside the quantiles of the exact solution",
                  .x_label = "time",
                  .y_label = "position",
                  .width = 560,
                  .height = 380};
  for (size_t i = 4; i < n; i += 8) {
    Series particle{.label = i == 4 ? "particle" : "", .x = flow.time, .color = 0},
        exact{.label = i == 4 ? "exact quantile" : "", .dashed = true, .color = 1};
    const double u = (static_cast<double>(i) + 0.5) / static_cast<double>(n);
    for (size_t k = 0; k < flow.time.size(); ++k) {
      particle.y.push_back(flow.positions[k][i]);
      exact.x.push_back(flow.time[k]);
      exact.y.push_back(mixture(1).after(flow.time[k], c).quantile(u));
    }
    chart.series.push_back(std::move(particle));
    chart.series.push_back(std::move(exact));
  }
  return line_chart(chart);
}

/// Densities at the end: 1 / (n gap) of neighbouring particles on the exact curves.
std::string density_chart(const HeatFlow& sinkhorn, const HeatFlow& softmax) {
  LineChart chart{.title = fmt::format("Density at time {:g}", sinkhorn.time.back()),
                  .description = "densities of the particles lie on the exact solutions with constants one half and one",
                  .x_label = "position",
                  .y_label = "density",
                  .width = 560,
                  .height = 380};
  const auto exact = [&](const char* label, const GaussianMixture& density, int color, bool dashed) {
    Series series{.label = label, .dashed = dashed, .color = color};
    for (double x = -3.2; x <= 3.4; x += 0.05) {
      series.x.push_back(x);
      series.y.push_back(density.density(&x));
    }
    chart.series.push_back(std::move(series));
  };
  const auto particles = [&](const char* label, std::vector<double> points, int color) {
    std::ranges::sort(points);
    Series series{.label = label, .line = false, .points = true, .color = color};
    for (size_t i = 2; i + 3 < points.size(); i += 3) {
      series.x.push_back((points[i] + points[i + 1]) / 2);
      series.y.push_back(1 / (static_cast<double>(points.size()) * (points[i + 1] - points[i])));
    }
    chart.series.push_back(std::move(series));
  };
  const double end = sinkhorn.time.back();
  exact("start", mixture(1), 6, true);
  exact("exact, c = 1/2", mixture(1).after(end, 0.5), 0, false);
  exact("exact, c = 1", mixture(1).after(end, 1), 1, false);
  particles("Sinkhorn particles", sinkhorn.positions.back(), 0);
  particles("softmax particles", softmax.positions.back(), 1);
  return line_chart(chart);
}

std::string scatter(const std::string& title, const std::vector<double>& points, int color) {
  Series series{.label = "", .line = false, .points = true, .color = color};
  for (size_t i = 0; i + 1 < points.size(); i += 2) {
    series.x.push_back(points[i]);
    series.y.push_back(points[i + 1]);
  }
  return line_chart({.title = title,
                     .description = fmt::format("{} particles in the plane", series.x.size()),
                     .series = {series},
                     .equal_axes = true,
                     .reach = 3.4,  // three pictures on one scale
                     .width = 380,
                     .height = 390});
}

/// Mean and standard error of c over seeds of random particles.
Estimate random_constant(Normalisation normalisation, int64_t n, double epsilon, double end, uint64_t seed, int draws) {
  std::vector<double> constants;
  for (int draw = 0; draw < draws; ++draw)
    constants.push_back(
        run_heat_flow(random_particles(mixture(2), n, seed * 1000 + static_cast<uint64_t>(draw)), normalisation, epsilon, end).constant());
  return estimate(constants);
}

}  // namespace

Demonstration show_diffusion(uint64_t seed) {
  Demonstration demo{
      .title = "Theorem 1 and Proposition 4: attention as diffusion",
      .statement =
          "Let the temperature \u03b5 fall. Sinkhorn's field, less its term in x, becomes \u2212\u00bd \u2207\u03c1/\u03c1, so that the density "
          "obeys the "
          "heat equation with constant \u00bd; softmax's (of distances) becomes \u2212\u2207\u03c1/\u03c1: constant 1. Here \u03c1 is a smooth bump "
          "that is "
          "zero outside [\u22123, 3]; c is the least-squares slope of the field against \u2212\u2207\u03c1/\u03c1 over the whole grid."};
  const DiffusionLimit line = diffusion_limit({.dim = 1}, 400, identity(1), 0.08, 6);
  const DiffusionLimit plane = diffusion_limit({.dim = 2}, 48, matrix(2, 2, {1, 0.25, 0.25, 0.75}), 0.08, 4);
  for (const auto& [dim, limit] : {std::pair(1, &line), std::pair(2, &plane)}) {
    demo.checks.push_back(close_to(fmt::format("{}-D grid, Sinkhorn: c at \u03b5 = {:g}", dim, limit->epsilon.back()),
                                   limit->constants.back().sinkhorn.field, 0.5, 0.01));
    demo.checks.push_back(close_to(fmt::format("{}-D grid, Sinkhorn: c as \u03b5 goes to 0", dim), limit->sinkhorn, 0.5, 0.01));
    demo.checks.push_back(close_to(fmt::format("{}-D grid, softmax: c as \u03b5 goes to 0", dim), limit->softmax, 1, 0.01));
  }
  const RandomDiffusion random_line = random_diffusion({.dim = 1}, {200, 400, 800}, 200, 16, 0.04, seed);
  const RandomDiffusion random_plane = random_diffusion({.dim = 2}, {200, 400, 800}, 32, 16, 0.16, seed);
  check_random(demo, random_line, 1);
  check_random(demo, random_plane, 2);
  demo.figures = {
      {{constant_chart(line, 1), constant_chart(plane, 2)},
       "Each halving of \u03b5 halves the distance from the limit. In two dimensions W_Q\u1d40W_K is not a multiple of the identity; the constant is "
       "the same."},
      {{field_chart(0.01)}, "The field itself, point by point."},
      {{random_chart(random_line, 1), random_chart(random_plane, 2)},
       "Independent random particles in place of the grid, 16 draws of each size; c is half the growth rate of their variance per dimension."}};
  demo.data = {{"line", json_of(line)}, {"plane", json_of(plane)}, {"random_line", json_of(random_line)}, {"random_plane", json_of(random_plane)}};
  return demo;
}

Demonstration show_heat(uint64_t seed) {
  constexpr double kEnd = 0.5;
  Demonstration demo{.title = "Particles against the heat equation",
                     .statement =
                         "Particles that start as a mixture of two Gaussians and follow the field, beside the exact solution: the same mixture with "
                         "variances grown by 2ct, c = \u00bd for Sinkhorn and 1 for softmax."};
  const Particles line = quantile_particles(mixture(1), 200);
  const HeatFlow sinkhorn = run_heat_flow(line, Normalisation::sinkhorn, 0.02, kEnd),
                 softmax = run_heat_flow(line, Normalisation::softmax, 0.02, kEnd);
  const double moved = distance_to(mixture(1).after(kEnd, 0.5), line.points);
  demo.checks.push_back(at_most("1-D, Sinkhorn at \u03b5 = 0.02: mean distance from the exact solution, as a part of the way moved",
                                distance_to(mixture(1).after(kEnd, 0.5), sinkhorn.positions.back()) / moved, 0.02));
  demo.checks.push_back(
      at_most("1-D, softmax at \u03b5 = 0.02: the same",
              distance_to(mixture(1).after(kEnd, 1), softmax.positions.back()) / distance_to(mixture(1).after(kEnd, 1), line.points), 0.06));

  const Particles plane = grid_particles(mixture(2), 0.16);
  LineChart spread{.title = "Variance in two dimensions",
                   .description = "variance per dimension over time: straight lines with slopes near one and two",
                   .x_label = "time",
                   .y_label = "variance per dimension",
                   .width = 560,
                   .height = 380};
  std::vector<std::string> pictures = {scatter("Start", random_particles(mixture(2), 400, seed).points, 6)};
  for (const auto& [normalisation, known] : {std::pair(Normalisation::sinkhorn, 0.5), std::pair(Normalisation::softmax, 1.0)}) {
    const std::string name = name_of(normalisation);
    const HeatFlow coarse = run_heat_flow(plane, normalisation, 0.1, kEnd), fine = run_heat_flow(plane, normalisation, 0.05, kEnd);
    const double limit = 2 * fine.constant() - coarse.constant();
    demo.checks.push_back(close_to(fmt::format("2-D weighted grid, {}: c of the flow as \u03b5 goes to 0 from 0.05", name), limit, known, 0.01));
    const Estimate random = random_constant(normalisation, 400, 0.1, kEnd, seed, 8);
    demo.data["plane"][name] = {{"c_at_0.1", coarse.constant()},
                                {"c_at_0.05", fine.constant()},
                                {"c_limit", limit},
                                {"c_random_400", random.mean},
                                {"c_random_400_error", random.error}};
    const int color = normalisation == Normalisation::sinkhorn ? 0 : 1;
    spread.series.push_back({.label = name + " at \u03b5 = 0.05", .x = fine.time, .y = fine.variance, .color = color});
    Series exact{.label = fmt::format("exact, c = {:g}", known), .dashed = true, .color = 6};
    for (double time : fine.time) {
      exact.x.push_back(time);
      exact.y.push_back(mixture(2).after(time, known).variance());
    }
    spread.series.push_back(std::move(exact));
    pictures.push_back(scatter(fmt::format("{} at time {:g}", color == 0 ? "Sinkhorn" : "Softmax", kEnd),
                               run_heat_flow(random_particles(mixture(2), 400, seed), normalisation, 0.1, kEnd).positions.back(), color));
    spread.note += fmt::format("{}{}: c = {:.4f} at \u03b5 = 0.1, {:.4f} at 0.05; 400 random particles at 0.1: {:.4f} \u00b1 {:.4f}.",
                               spread.note.empty() ? "" : " ", name, coarse.constant(), fine.constant(), random.mean, random.error);
  }
  demo.figures = {{{path_chart(sinkhorn, "Sinkhorn", 0.5), path_chart(softmax, "Softmax", 1)},
                   "200 particles in one dimension, every eighth drawn, \u03b5 = 0.02."},
                  {{density_chart(sinkhorn, softmax), line_chart(spread)}, ""},
                  {pictures, "400 random particles in the plane, \u03b5 = 0.1: softmax spreads them about twice as fast."}};
  demo.data["line"] = {{"time", sinkhorn.time}, {"sinkhorn", sinkhorn.positions.back()}, {"softmax", softmax.positions.back()}};
  return demo;
}

}  // namespace sinkgrad
