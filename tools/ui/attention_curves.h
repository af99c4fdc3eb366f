// What `train --attention-every` has measured, drawn over training: one chart per quantity and layer.
#pragma once
#include <string>
#include <vector>

#include "tools/ui/curves.h"

namespace sinkgrad {

struct AttentionCharts {
  int layer;
  std::vector<std::string> charts;  ///< column sums, marginal error, entropy
};

/// One entry per layer. With one group each head is a curve, with several each group is: the median over its heads and seeds, and a band from
/// least to greatest. InputError when no run has watched its attention.
std::vector<AttentionCharts> attention_charts(const std::vector<RunGroup>& groups, CurveAxis axis);

}  // namespace sinkgrad
