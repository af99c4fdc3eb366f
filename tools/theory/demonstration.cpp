// The list of demonstrations, and checks in words.
#include "tools/theory/demonstration.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace sinkgrad {
namespace {

constexpr DemonstrationEntry kAll[] = {
    {"invariance", "Proposition 1: Sinkhorn's limit does not see row and column constants", show_invariance},
    {"energy", "Proposition 2: energies fall along the flows; particle tracks", show_energy},
    {"gradient", "Proposition 3: softmax's field is no gradient", show_gradient},
    {"diffusion", "Theorem 1 and Proposition 4: the constant of the heat equation, on grids and from random particles", show_diffusion},
    {"heat", "particles against the exact solution of the heat equation, in one and two dimensions", show_heat},
    {"rank", "the rank of pure attention over depth", show_rank},
    {"figure1", "the paper's Figure 1: ten queries and ten keys", show_figure_one},
};

/// "1e-9" where printf says "1e-09".
std::string short_number(double value) {
  std::string text = fmt::format("{:.4g}", value);
  if (const size_t zero = text.find("e-0"); zero != std::string::npos) text.erase(zero + 2, 1);
  return text;
}

}  // namespace

Check at_most(std::string what, double value, double bound) { return {std::move(what), value, "at most " + short_number(bound), value <= bound}; }

Check at_least(std::string what, double value, double bound) { return {std::move(what), value, "at least " + short_number(bound), value >= bound}; }

Check close_to(std::string what, double value, double known, double tolerance) {
  return {std::move(what), value, short_number(known) + fmt::format(" within {:g} %", 100 * tolerance),
          std::abs(value - known) <= tolerance * std::abs(known)};
}

Check within(std::string what, double value, double known, double tolerance) {
  return {std::move(what), value, tolerance == 0 ? short_number(known) : short_number(known) + " \u00b1 " + short_number(tolerance),
          std::abs(value - known) <= tolerance};
}

bool Demonstration::ok() const {
  return std::ranges::all_of(checks, [](const Check& check) { return check.ok; });
}

std::span<const DemonstrationEntry> demonstrations() { return kAll; }

}  // namespace sinkgrad
