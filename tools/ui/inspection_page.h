// An inspection as one HTML page: what a teacher opens in class and a researcher when a run misbehaves.
#pragma once
#include <string>

#include "tools/ui/inspection_data.h"

namespace sinkgrad {

/// `subtitle` says how the page came about: program, version, device. Matrices beyond 64 rows or columns are drawn as means of blocks; of many
/// half-steps the first and the last are drawn.
std::string inspection_page(const Inspection& inspection, const InspectionSource& source, const std::string& subtitle);

}  // namespace sinkgrad
