// A demonstration is one statement of the paper with its numbers against the known answers, its figures and its data. Computing lies in the other
// files of this folder, drawing in show_*.cpp.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace sinkgrad {

/// One measured number against what is known of it.
struct Check {
  std::string what;
  double value;
  std::string known;  ///< "at most 1e-12", "1/2 within 1 %"
  bool ok;
};
Check at_most(std::string what, double value, double bound);
Check at_least(std::string what, double value, double bound);
/// Within a fraction `tolerance` of `known`.
Check close_to(std::string what, double value, double known, double tolerance);
/// Within `tolerance` of `known`, in units of the number itself.
Check within(std::string what, double value, double known, double tolerance);

struct Figure {
  std::vector<std::string> charts;  ///< SVG, see tools/ui/svg.h
  std::string caption;
};

struct Demonstration {
  std::string title, statement;
  std::vector<Check> checks;
  std::vector<Figure> figures;
  nlohmann::ordered_json data;
  bool ok() const;
};

struct DemonstrationEntry {
  const char *name, *summary;
  Demonstration (*run)(uint64_t seed);
};
/// In the order in which they are shown.
std::span<const DemonstrationEntry> demonstrations();

Demonstration show_invariance(uint64_t seed);
Demonstration show_energy(uint64_t seed);
Demonstration show_gradient(uint64_t seed);
Demonstration show_diffusion(uint64_t seed);
Demonstration show_heat(uint64_t seed);
Demonstration show_rank(uint64_t seed);
Demonstration show_figure_one(uint64_t seed);

}  // namespace sinkgrad
