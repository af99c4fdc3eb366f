// Propositions 1 to 3 as checks and figures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/theory/demonstration.h"
#include "tools/theory/propositions.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

constexpr Normalisation kNormalisations[] = {Normalisation::none, Normalisation::softmax, Normalisation::sinkhorn};

std::string plan_map(const std::string& title, const std::vector<double>& plan, size_t n) {
  return heat_map({.title = title,
                   .description = fmt::format("{} by {} attention weights with column sums", n, n),
                   .rows = n,
                   .columns = n,
                   .values = plan,
                   .low = 0.0,
                   .column_sums = true,
                   .column_reference = 1.0,
                   .size = 150});
}

/// Tracks of particles in the plane, every `stride` steps, with their first and last places as dots.
std::string track_chart(const std::string& title, const std::vector<std::vector<double>>& positions, size_t stride) {
  const size_t n = positions[0].size() / 2;
  LineChart chart{.title = title,
                  .description = fmt::format("{} particles in the plane: where each starts, its path and where it ends", n),
                  .equal_axes = true,
                  .width = 400,
                  .height = 400};
  const auto dots = [&](const std::vector<double>& at, const char* label, int color) {
    Series series{.label = label, .line = false, .points = true, .color = color};
    for (size_t i = 0; i < n; ++i) {
      series.x.push_back(at[2 * i]);
      series.y.push_back(at[2 * i + 1]);
    }
    return series;
  };
  for (size_t i = 0; i < n; ++i) {
    Series track{.label = i == 0 ? "path" : "", .color = 5};
    for (size_t step = 0; step < positions.size(); step += stride) {
      track.x.push_back(positions[step][2 * i]);
      track.y.push_back(positions[step][2 * i + 1]);
    }
    chart.series.push_back(std::move(track));
  }
  chart.series.push_back(dots(positions.front(), "start", 6));
  chart.series.push_back(dots(positions.back(), "end", 1));
  return line_chart(chart);
}

/// Two clouds, one of them stretched: 48 points (48, 2).
Tensor two_clouds(uint64_t seed) {
  Tensor points = random_points(seed, 48, 2, 0.4);
  const auto x = points.span<double>();
  for (size_t i = 0; i < 48; ++i) {
    x[2 * i] = i < 24 ? x[2 * i] - 1.4 : 1.8 * x[2 * i] + 1;
    x[2 * i + 1] += i < 24 ? 0.3 : -0.5;
  }
  return points;
}

}  // namespace

Demonstration show_invariance(uint64_t seed) {
  const Invariance result = measure_invariance(seed);
  const auto n = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(result.limit.size()))));
  Demonstration demo{.title = "Proposition 1: invariance",
                     .statement =
                         "Adding a number to every row and every column of the scores changes softmax, but not Sinkhorn's limit: the "
                         "potentials absorb it. So a product of query and key may be replaced by minus half their squared distance."};
  const double last = result.half_steps.back();
  demo.checks = {
      at_most(fmt::format("largest change of an entry by f_i + g_j after {:g} half-steps", last), result.difference.back(), 1e-12),
      at_most(fmt::format("largest change by distances in place of products after {:g} half-steps", last), result.distance_difference.back(), 1e-12),
      at_least("largest change of softmax by f_i + g_j, for contrast", result.difference.front(), 0.1)};
  LineChart chart{.title = "How much the plan changes",
                  .description = fmt::format("largest change of an entry over half-steps, from {} at softmax to {} after {:g}",
                                             format_number(result.difference.front()), format_number(result.difference.back()), last),
                  .x_label = "half-steps",
                  .y_label = "largest change of an entry",
                  .log_y = true,
                  .note = "Below 1e-15 is rounding.",
                  .width = 640};
  chart.series.push_back({.label = "f_i + g_j added", .x = result.half_steps, .y = result.difference, .points = true});
  chart.series.push_back({.label = "distances for products", .x = result.half_steps, .y = result.distance_difference, .points = true});
  Series predicted{.label = fmt::format("slope predicted: \u03c3\u2082\u00b2 = {:.3f} per two half-steps", result.rate), .dashed = true, .color = 6};
  const size_t anchor = 5;
  for (size_t i = 0; i < result.half_steps.size() && result.half_steps[i] <= 100; ++i) {
    predicted.x.push_back(result.half_steps[i]);
    predicted.y.push_back(result.difference[anchor] * std::pow(result.rate, (result.half_steps[i] - result.half_steps[anchor]) / 2));
  }
  chart.series.push_back(predicted);
  demo.figures.push_back({{line_chart(chart)}, "The plans of both scores come together at the rate of Sinkhorn's own convergence."});
  demo.figures.push_back(
      {{plan_map("Softmax of C", result.softmax, n), plan_map("Softmax of C + f + g", result.softmax_shifted, n),
        plan_map("Limit of C", result.limit, n), plan_map("Limit of C + f + g", result.limit_shifted, n)},
       "Rows are queries and sum to 1 in all four; columns are keys, their sums are the bars. The two limits are the same matrix."});
  demo.data = {{"half_steps", result.half_steps},
               {"difference", result.difference},
               {"distance_difference", result.distance_difference},
               {"sigma2_squared", result.rate}};
  return demo;
}

Demonstration show_energy(uint64_t seed) {
  constexpr int kSteps = 500;
  constexpr double kStepSize = 0.02;
  const Tensor points = two_clouds(seed), interaction = matrix(2, 2, {1, 0.3, 0.3, 0.6});
  Demonstration demo{
      .title = "Proposition 2: energies fall along the flows",
      .statement =
          "With W_Q\u1d40W_K = M symmetric and W_V = \u2212M, attention without normalisation is minus the Wasserstein gradient of "
          "F\u2070 = \u00bd mean of exp(c), and Sinkhorn's that of F\u221e = \u2212\u00bd mean of k\u221e log(k\u221e/k\u2070): each step lowers "
          "them. "
          "M is positive here: each particle is pushed against the mean of those that resemble it, and all come to rest at the origin."};
  std::vector<std::string> tracks;
  LineChart chart{
      .title = "Energy",
      .description = "energies of three flows over time, all falling",
      .x_label = "time",
      .y_label = "energy above its minimum",
      .log_y = true,
      .note =
          "The minimum of F\u2070 is \u00bd, that of F\u221e 0: all particles at the origin. Softmax descends no energy; F\u221e is drawn for "
          "comparison.",
      .width = 640};
  for (Normalisation normalisation : kNormalisations) {
    const ParticleFlow flow = run_flow(points, interaction, normalisation, kSteps, kStepSize);
    const std::string name = name_of(normalisation);
    if (normalisation != Normalisation::softmax) {
      demo.checks.push_back(
          at_most(fmt::format("{}: largest rise of the energy in {} steps of {:g}", name, kSteps, kStepSize), flow.largest_rise, 0));
      demo.checks.push_back(at_most(name + ": field against \u2212N times the tape's gradient of the energy, relative", flow.gradient_gap, 1e-9));
    }
    Series series{.label = normalisation == Normalisation::none       ? "F\u2070, no normalisation"
                           : normalisation == Normalisation::sinkhorn ? "F\u221e, Sinkhorn"
                                                                      : "F\u221e along the flow of softmax",
                  .dashed = normalisation == Normalisation::softmax};
    for (size_t step = 0; step + 1 < flow.energy.size(); step += 5) {
      series.x.push_back(static_cast<double>(step) * kStepSize);
      series.y.push_back(flow.energy[step] - (normalisation == Normalisation::none ? 0.5 : 0.0));
    }
    chart.series.push_back(std::move(series));
    tracks.push_back(track_chart(normalisation == Normalisation::none      ? "No normalisation"
                                 : normalisation == Normalisation::softmax ? "Softmax"
                                                                           : "Sinkhorn",
                                 flow.positions, 10));
    demo.data[name] = {{"energy", flow.energy}, {"first", flow.positions.front()}, {"last", flow.positions.back()}};
  }
  demo.figures.push_back({{line_chart(chart)}, ""});
  demo.figures.push_back(
      {tracks, fmt::format("The same {} particles under the three fields, {} explicit Euler steps of {:g}.", points.shape()[0], kSteps, kStepSize)});
  return demo;
}

Demonstration show_gradient(uint64_t seed) {
  constexpr int kDraws = 12;
  Demonstration demo{.title = "Proposition 3: softmax's field is no gradient",
                     .statement =
                         "A field on particles is a Wasserstein gradient only if the Jacobian of all velocities by all positions is symmetric. "
                         "Unnormalised and Sinkhorn attention pass, softmax does not."};
  LineChart chart{.title = "Asymmetry of the Jacobian",
                  .description = "relative asymmetry of the Jacobian for three normalisations and twelve random draws",
                  .x_label = "draw of 8 particles and M",
                  .y_label = "|J \u2212 J\u1d40| / |J|",
                  .log_y = true,
                  .x_integers = true,
                  .width = 640};
  std::vector<std::string> maps;
  for (Normalisation normalisation : kNormalisations) {
    Series series{.label = name_of(normalisation), .line = false, .points = true};
    for (int draw = 0; draw < kDraws; ++draw) {
      const uint64_t key = seed * 1000 + static_cast<uint64_t>(draw);
      const FieldJacobian jacobian = field_jacobian(random_points(key, 8, 2), random_interaction(key, 2), normalisation);
      series.x.push_back(draw + 1);
      series.y.push_back(jacobian.asymmetry);
      if (draw > 0 || normalisation == Normalisation::none) continue;
      std::vector<double> skew = jacobian.values;
      for (size_t i = 0; i < 16; ++i)
        for (size_t j = 0; j < 16; ++j) skew[i * 16 + j] -= jacobian.values[j * 16 + i];
      const std::string name = normalisation == Normalisation::softmax ? "Softmax" : "Sinkhorn";
      const auto [low, high] = std::ranges::minmax(jacobian.values);
      const double scale = std::max(std::abs(low), std::abs(high));
      for (const auto& [title, values] : {std::pair(name + ": J", &jacobian.values), std::pair(name + ": J \u2212 J\u1d40", &std::as_const(skew))})
        maps.push_back(heat_map({.title = title,
                                 .description = "a 16 by 16 matrix, both halves on one colour scale",
                                 .rows = 16,
                                 .columns = 16,
                                 .values = *values,
                                 .diverging = true,
                                 .low = -scale,
                                 .high = scale,
                                 .size = 160}));
    }
    demo.data[name_of(normalisation)] = series.y;
    chart.series.push_back(std::move(series));
  }
  const auto& curves = chart.series;  // in the order of kNormalisations
  demo.checks = {at_least(fmt::format("softmax: least asymmetry of {} draws", kDraws), std::ranges::min(curves[1].y), 0.1),
                 at_most(fmt::format("Sinkhorn: largest asymmetry of {} draws", kDraws), std::ranges::max(curves[2].y), 1e-9),
                 at_most(fmt::format("no normalisation: largest asymmetry of {} draws", kDraws), std::ranges::max(curves[0].y), 1e-9)};
  demo.figures = {{{line_chart(chart)}, ""}, {maps, "The first draw: rows and columns are the coordinates of 8 particles in the plane."}};
  return demo;
}

}  // namespace sinkgrad
