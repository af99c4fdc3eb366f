// What the page of one inspection and that of two have in common: matrices with their excluded lines hatched, numbers for people.
#pragma once
#include <string>

#include "nn/inspect/difference.h"
#include "tools/ui/inspection_data.h"
#include "tools/ui/svg.h"

namespace sinkgrad {

/// Two significant digits.
std::string short_number(double value);
/// "1 half-step", "5 half-steps".
std::string half_steps_text(int count);

/// A matrix (n, m) with NaN, which is drawn hatched, in the rows and columns that do not take part.
Numbers hatched(const Inspection& inspection, const Numbers& matrix);

/// A heat map of such a matrix, rows and columns named as in `source`; `size` is in pixels, of the longer side.
HeatMap matrix_chart(const Inspection& inspection, const InspectionSource& source, const std::string& title, const std::string& description,
                     const Numbers& values, double size);

}  // namespace sinkgrad
