// Rank of pure attention over depth, and Figure 1, as checks and figures.
#include <fmt/format.h>

#include <algorithm>

#include "tools/theory/demonstration.h"
#include "tools/theory/figure_one.h"
#include "tools/theory/rank_decay.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

/// The median over seeds and the range as a band, of one value per layer.
Series over_layers(const std::string& label, const std::vector<std::vector<double>>& by_seed) {
  Series series{.label = label, .points = true};
  for (size_t layer = 0; layer < by_seed[0].size(); ++layer) {
    std::vector<double> values;
    for (const auto& seed : by_seed) values.push_back(seed[layer]);
    std::ranges::sort(values);
    series.x.push_back(static_cast<double>(layer));
    series.y.push_back(values[values.size() / 2]);
    series.low.push_back(values.front());
    series.high.push_back(values.back());
  }
  return series;
}

}  // namespace

Demonstration show_rank(uint64_t seed) {
  constexpr int kSeeds = 7, kLayers = 7;
  Demonstration demo{
      .title = "Rank of pure attention over depth",
      .statement =
          "Attention without skip connections and MLPs makes all tokens alike. Once the distance from rank one is small, a layer cubes "
          "it, for softmax (Dong, Cordonnier, Loukas 2021) and for Sinkhorn: doubly exponential in depth."};
  LineChart residual{
      .title = "Distance from rank one",
      .description = "relative distance of the tokens from their mean over layers for four numbers of half-steps, falling doubly exponentially",
      .x_label = "layer",
      .y_label = "|X \u2212 1 mean(X)\u1d40| / |X|",
      .log_y = true,
      .x_integers = true,
      .note = fmt::format("Line: median over {} seeds; band: least to greatest. Below 1e-15 is rounding.", kSeeds),
      .width = 560};
  LineChart rank{.title = "Effective rank",
                 .description = "effective rank of the tokens over layers for four numbers of half-steps, falling to one",
                 .x_label = "layer",
                 .y_label = "(\u03a3\u03c3\u00b2)\u00b2 / \u03a3\u03c3\u2074",
                 .x_integers = true,
                 .note = "\u03c3: singular values of the 32 tokens. Equal ones give their number, a single one gives 1.",
                 .width = 560};
  for (int half_steps : {1, 3, 5, 21}) {
    std::vector<std::vector<double>> residuals, ranks;
    std::vector<double> orders;
    for (int draw = 0; draw < kSeeds; ++draw) {
      const uint64_t key = seed * 1000 + static_cast<uint64_t>(draw);
      const RankDecay decay = measure_rank_decay(key, half_steps, kLayers);
      residuals.push_back(decay.residual);
      ranks.push_back(decay.effective_rank);
      orders.push_back(contraction_order(key, half_steps));
    }
    const std::string name = half_steps == 1 ? "softmax" : fmt::format("Sinkhorn, {} half-steps", half_steps);
    residual.series.push_back(over_layers(name, residuals));
    rank.series.push_back(over_layers(name, ranks));
    const double worst = *std::ranges::max_element(orders, {}, [](double order) { return std::abs(order - 3); });
    demo.checks.push_back(close_to(name + ": order of a layer near rank one, the worst of all seeds", worst, 3, 0.01));
    demo.data[name] = {{"residual_median", residual.series.back().y}, {"effective_rank_median", rank.series.back().y}, {"orders", orders}};
  }
  demo.figures = {{{line_chart(residual), line_chart(rank)},
                   "32 random tokens of width 32, fresh random weights in every layer, scores with standard deviation about 3. Sinkhorn keeps more "
                   "directions alive in the first layer; afterwards its tokens come together no later than softmax's."}};
  return demo;
}

Demonstration show_figure_one(uint64_t) {
  const FigureOne result = figure_one();
  Demonstration demo{.title = "Figure 1: softmax and Sinkhorn as matchings",
                     .statement =
                         "Ten queries and ten keys of the paper. The plain kernel spends nearly all its weight on one pair, softmax serves every key "
                         "but leaves queries out, and Sinkhorn serves every key and every query."};
  const auto chart = [&](const char* title, const std::vector<double>& weights) {
    return link_chart({.title = title,
                       .description = fmt::format("{} links between queries and keys, widths proportional to the weights", links(weights)),
                       .from_label = "query",
                       .to_label = "key",
                       .from = result.queries,
                       .to = result.keys,
                       .weights = weights,
                       .least = 1e-12,
                       .note = fmt::format("{} links above 1e-12, the largest {}.", links(weights), format_number(std::ranges::max(weights)))});
  };
  const auto least_query = [](const std::vector<double>& weights) {
    double least = 1;
    for (size_t i = 0; i < 10; ++i) {
      double sum = 0;
      for (size_t j = 0; j < 10; ++j) sum += 10 * weights[i * 10 + j];
      least = std::min(least, sum);
    }
    return least;
  };
  // Reference values: the authors' construction in numpy, float64.
  demo.checks = {within("links of the plain kernel", links(result.kernel), 3, 0),
                 within("links of softmax", links(result.softmax), 19, 0),
                 within("links of Sinkhorn", links(result.sinkhorn), 64, 0),
                 within("largest weight of Sinkhorn", std::ranges::max(result.sinkhorn), 0.08712735605013822, 1e-12),
                 at_most("softmax: least sum of a query", least_query(result.softmax), 1e-12),
                 within("Sinkhorn: least sum of a query", least_query(result.sinkhorn), 1, 1e-12)};
  demo.figures = {
      {{chart("Kernel", result.kernel), chart("Softmax", result.softmax), chart("Sinkhorn", result.sinkhorn)},
       "Line widths are proportional to the weights of each picture, as in the paper; softmax normalises over the queries of each key there."}};
  demo.data = {
      {"queries", result.queries}, {"keys", result.keys}, {"kernel", result.kernel}, {"softmax", result.softmax}, {"sinkhorn", result.sinkhorn}};
  return demo;
}

}  // namespace sinkgrad
