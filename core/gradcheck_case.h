// One case of the gradient check: how it is run (gradcheck_case.cpp), and how its derivatives are measured (gradcheck_differences.cpp).
#pragma once
#include "core/gradcheck.h"
#include "core/numbers.h"

namespace sinkgrad::detail {

/// What is checked: a function of drawn inputs, and how they are drawn.
struct GradcheckCase {
  std::string name;
  std::vector<SampleInput> inputs;
  TapeFunction function, reference;
  Attrs attrs;
  bool zero_gradient = false, true_gradient = true;
  double tolerance = 0;
  std::string stream;  ///< names the random stream

  bool requires_grad(size_t input) const { return !inputs[input].absent && !inputs[input].integer && inputs[input].differentiable; }
};
/// The case of one sample of an op.
GradcheckCase case_of(const OpDef& op, size_t sample);
/// Values for its inputs.
std::vector<Numbers> draw(const GradcheckCase& c, uint64_t seed);
/// A cotangent for an output of `count` elements: never ones, which hide the gradients of everything normalised.
Numbers draw_cotangent(const GradcheckCase& c, uint64_t seed, size_t count);

struct Outcome {
  Numbers out;
  std::vector<Numbers> grads;
  bool inputs_unchanged = true, guards_intact = true;
  Shape shape = {};  ///< of the output
};

/// What added gradients start from.
constexpr double kPrefill = 2.5;
enum class Gradients { none, written, added };

/// Runs the function on NaN-filled memory, and its backward if `cotangent` is given; added gradients twice, starting at kPrefill
/// between guards.
Outcome run(const TapeFunction& f, const GradcheckCase& c, const std::vector<Numbers>& x, DType dtype, const Numbers* cotangent, Gradients mode,
            Device device = Device::cpu());

/// A way to move the inputs: one element of one input, or all elements of one input at once.
struct Direction {
  size_t input = 0, element = 0;
  Numbers along = {};  ///< one number per element of the input; empty where a single element moves
  int number = 0;      ///< 0 where a single element moves, else 1, 2, ...
};

/// The derivatives that are compared: w' J u of each cotangent w with each direction u.
struct Probes {
  size_t outputs = 0;
  std::vector<Numbers> cotangents = {};  ///< empty: every element of the output by itself, which makes a full Jacobian
  std::vector<Direction> directions = {};

  size_t cotangent_count() const { return cotangents.empty() ? outputs : cotangents.size(); }
  Numbers cotangent(size_t j) const;
  /// w' y of every cotangent; of `magnitudes` |w|' y.
  Numbers project(const Numbers& y, bool magnitudes = false) const;
};
Probes probes_for(const GradcheckCase& c, const GradcheckOptions& options, const std::vector<Numbers>& x, size_t outputs);

/// Such as "full Jacobian 12 x 12", for a report.
std::string method_of(const GradcheckCase& c, const Probes& probes);

/// A derivative for each cotangent of each direction, [direction][cotangent], and how far it may be off.
struct Derivatives {
  std::vector<Numbers> value, bar;
};

/// The first step of the differences relative to max(1, |x|). The extrapolation leaves h^4 of truncation, the rounding is 1e-16 / h.
constexpr double kStep = 2e-4;
/// Central and second differences of the output for one step: (f(x+hu) - f(x-hu)) / 2h and (f(x+hu) - 2 f(x) + f(x-hu)) / h, `middle` is f(x);
/// and what the rounding of the output alone does to the first.
struct Difference {
  Numbers first, second, rounding;
};
Difference difference(const GradcheckCase& c, const std::vector<Numbers>& x, const Numbers& middle, const Direction& d, double h);
/// 1, or |x| of a single element that is larger: what steps are multiplied by.
double step_scale(const std::vector<Numbers>& x, const Direction& d);
/// Central differences at h and h/2, extrapolated. The bar is their distance, or that to a third one, and what the second difference at h/2
/// leaves of that at h, which shows a kink at x itself. Where it exceeds the tolerance shorter steps are tried; the least bar counts.
Derivatives differences(const GradcheckCase& c, const std::vector<Numbers>& x, const Probes& probes);
/// The same from a backward, that of `f`.
Derivatives derivatives(const TapeFunction& f, const GradcheckCase& c, const std::vector<Numbers>& x, const Probes& probes);

/// Fills the report's inputs and worst entry from the two. A derivative is wrong when its error exceeds the tolerance, and cannot be
/// verified when the bar does; then it is wrong only far beyond the bar.
void compare(const GradcheckCase& c, const Probes& probes, const Shape& out, const Derivatives& analytic, const Derivatives& numeric,
             GradcheckReport* r);
/// Sums over the report's inputs.
int64_t bad(const GradcheckReport& r);
int64_t unverifiable(const GradcheckReport& r);

/// The report without its results: what is checked, on which inputs.
GradcheckReport report_of(const GradcheckCase& c, const GradcheckOptions& options);

}  // namespace sinkgrad::detail
