// The report of a gradient check as JSON (docs/formats.md), and what of it runs the check again.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "core/gradcheck.h"

namespace sinkgrad {

/// `device` as it was asked for on the command line.
nlohmann::ordered_json to_json(const GradcheckReport& report, const std::string& device);

/// A case to run again.
struct GradcheckReplay {
  std::string op, device;
  size_t sample = 0;
  GradcheckOptions options;
  nlohmann::json shapes;  ///< of the inputs
};
/// Throws nlohmann's exceptions where `report` is not what to_json makes.
GradcheckReplay replay_of(const nlohmann::json& report);
/// The shapes of a report's inputs, to compare with those of a replay.
nlohmann::json shapes_of(const GradcheckReport& report);

}  // namespace sinkgrad
