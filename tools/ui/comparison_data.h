// Two inspections beside each other, for machines and for a terminal.
#pragma once
#include "nn/inspect/difference.h"
#include "tools/ui/inspection_data.h"

namespace sinkgrad {

/// One of the two.
struct ComparedSide {
  Inspection inspection;
  InspectionSource source;
};

struct Comparison {
  ComparedSide a, b;
  InspectionDifference change;     ///< B - A
  std::vector<std::string> notes;  ///< what a reader must know to judge it, in words
};

/// A number of each side, such as "mean entropy of a row".
struct ComparedNumber {
  std::string name;
  double a, b;
};
std::vector<ComparedNumber> compared_numbers(const Comparison& comparison);
/// What changes from A to B, in a sentence for the plan and one for the gradient.
std::vector<std::string> changes_in_words(const Comparison& comparison);

/// The arrays of both, named a_P and b_P where an inspection has P, and the changes: change_P, change_row_sum, ...; docs/inspect.md lists them.
std::vector<std::pair<std::string, Tensor>> comparison_arrays(const Comparison& comparison);
/// {"schema": 1, "tool", "notes", "numbers", "change", "a", "b"}; "a" and "b" are those of inspection_json.
nlohmann::ordered_json comparison_json(const Comparison& comparison);
/// A table of the numbers and the changes in words.
std::string comparison_text(const Comparison& comparison);

}  // namespace sinkgrad
