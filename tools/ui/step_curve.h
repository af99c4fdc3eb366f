// The step-size curve of a gradient check: the V of difference quotients between truncation and rounding.
#pragma once
#include "core/gradcheck.h"
#include "tools/ui/svg.h"

namespace sinkgrad {

LineChart step_curve(const GradcheckCurve& curve);

}  // namespace sinkgrad
