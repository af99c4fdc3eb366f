// Figure 3: how good a model is with different numbers of half-steps.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/ui/svg.h"

namespace sinkgrad {

struct HalfStepCurve {
  std::string label;
  std::map<int64_t, std::vector<double>> scores;  ///< half-steps -> one score per seed
};

/// Median over half-steps, and the range as a band where there are several seeds. `measure` says what the scores are: "accuracy", in percent, or
/// "BLEU".
LineChart half_steps_chart(const std::vector<HalfStepCurve>& curves, const std::string& measure);

}  // namespace sinkgrad
