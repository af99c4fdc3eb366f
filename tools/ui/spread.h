// What runs with several seeds gave, as people read it: median and range.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace sinkgrad {

struct Spread {
  double median = NAN, least = NAN, greatest = NAN;  ///< NaN of no values
  size_t count = 0;

  explicit Spread(std::vector<double> values) : count(values.size()) {
    if (values.empty()) return;
    std::sort(values.begin(), values.end());
    const size_t half = count / 2;
    median = count % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
    least = values.front();
    greatest = values.back();
  }
  /// " (91.20 to 92.40)" after a median; nothing of a single value.
  std::string range() const { return count > 1 ? fmt::format(" ({:.2f} to {:.2f})", least, greatest) : ""; }
};

}  // namespace sinkgrad
