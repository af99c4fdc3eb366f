// An inspection for machines and for a terminal: JSON and .npz with stable names, and a short text.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "nn/inspect/inspection.h"

namespace sinkgrad {

/// Where the scores come from.
struct InspectionSource {
  std::string title;                                                     ///< for people: "random scores, 6 x 8, seed 1"
  std::string details{};                                                 ///< more of it, such as what the rows and columns are
  std::string row_name = "row", column_name = "column";                  ///< "query" and "key" in a model
  nlohmann::ordered_json attributes = nlohmann::ordered_json::object();  ///< for machines
};

/// The arrays by name, with l half-steps on (n, m) scores: C, W, P (l, n, m), f (l, n), ...; docs/inspect.md lists them.
std::vector<std::pair<std::string, Tensor>> inspection_arrays(const Inspection& inspection);

/// {"schema": 1, "source", "half_steps", "warnings", "checks", "limit", "modes", "jacobians", "convergence"} and every array, nested by its shape.
/// Numbers that are not finite are strings.
nlohmann::ordered_json inspection_json(const Inspection& inspection, const InspectionSource& source);

/// A table of the half-steps, the gradients side by side, and the warnings.
std::string inspection_text(const Inspection& inspection, const InspectionSource& source);

/// An f64 array as lists of lists.
nlohmann::ordered_json array_json(const Tensor& array);

/// "1 (rows)", "2 (columns)", ...
std::string half_step_name(size_t k);

}  // namespace sinkgrad
