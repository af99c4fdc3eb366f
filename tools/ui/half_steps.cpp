// Where a run counts more than ten half-steps the axis is logarithmic: what happens, happens at the first few.
#include "tools/ui/half_steps.h"

#include "tools/ui/spread.h"

namespace sinkgrad {

LineChart half_steps_chart(const std::vector<HalfStepCurve>& curves, const std::string& measure) {
  LineChart chart{.title = "Test " + measure + " by half-steps",
                  .description = "test " + measure + " against the number of half-steps, of which one is softmax",
                  .x_label = "half-steps (1: softmax)",
                  .y_label = measure == "accuracy" ? "accuracy, %" : measure,
                  .x_integers = true};
  bool several = false;
  for (const HalfStepCurve& curve : curves) {
    Series& series = chart.series.emplace_back(Series{.label = curve.label, .x = {}, .y = {}, .points = true});
    for (const auto& [half_steps, scores] : curve.scores) {
      const Spread spread(scores);
      several |= spread.count > 1;
      series.x.push_back(static_cast<double>(half_steps));
      series.y.push_back(spread.median);
      series.low.push_back(spread.least);
      series.high.push_back(spread.greatest);
      chart.log_x |= half_steps > 10;
    }
  }
  if (several) chart.note = "Median over seeds; band: least to greatest.";
  return chart;
}

}  // namespace sinkgrad
