// Matrices are drawn as pictures: a page of one at 64 x 64 stays below 2 MB.
#include "tools/ui/inspection_figures.h"

#include <fmt/format.h>

#include <cstdlib>
#include <limits>

namespace sinkgrad {

std::string short_number(double value) { return format_number(std::strtod(fmt::format("{:.2g}", value).c_str(), nullptr)); }

std::string half_steps_text(int count) { return fmt::format("{} half-step{}", count, count == 1 ? "" : "s"); }

Numbers hatched(const Inspection& i, const Numbers& matrix) {
  Numbers shown(matrix.size(), std::numeric_limits<double>::quiet_NaN());
  for (int64_t a : i.rows)
    for (int64_t b : i.columns) shown[static_cast<size_t>(a * i.m + b)] = matrix[static_cast<size_t>(a * i.m + b)];
  return shown;
}

HeatMap matrix_chart(const Inspection& i, const InspectionSource& source, const std::string& title, const std::string& description,
                     const Numbers& values, double size) {
  return {.title = title,
          .description = description,
          .rows = static_cast<size_t>(i.n),
          .columns = static_cast<size_t>(i.m),
          .values = hatched(i, values),
          .missing = "excluded",
          .row_axis = source.row_name,
          .column_axis = source.column_name,
          .size = size,
          .picture = true};
}

}  // namespace sinkgrad
