// Two inspections as one HTML page: what five half-steps do that one does not, what training changed.
#pragma once
#include <string>

#include "tools/ui/comparison_data.h"

namespace sinkgrad {

/// `subtitle` says how the page came about: program, version, device.
std::string comparison_page(const Comparison& comparison, const std::string& subtitle);

}  // namespace sinkgrad
