// The gradient check: float64 central differences against a backward, and the rest of the op contract.
//
//   GradcheckReport r = gradcheck("my loss", [](Tape&, std::span<const Var> x) { return mean(mul(x[0], x[1])); }, {a, b});
//   if (!r.passed()) std::cerr << r.text();
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/tape.h"

namespace sinkgrad {

/// What came of a check, from the best to the worst.
enum class GradcheckVerdict {
  pass,
  skipped,           ///< nothing to check; GradcheckReport::skipped says why
  unverifiable,      ///< the differences' own error exceeds the tolerance, also with other inputs: a kink, cancellation, overflow
  nondeterministic,  ///< two runs on the same inputs differ
  fail,              ///< a gradient or another rule of the contract is broken
  error              ///< the op threw; GradcheckReport::error is its message
};
/// "PASS", "SKIPPED", "UNVERIFIABLE", "NONDETERMINISTIC", "FAIL", "ERROR".
const char* name_of(GradcheckVerdict v);
/// Whether it counts as a failure; with `strict` everything but PASS does.
inline bool is_failure(GradcheckVerdict v, bool strict = false) { return v > (strict ? GradcheckVerdict::pass : GradcheckVerdict::unverifiable); }

/// One derivative that was compared: of an output element or of a random combination of all (a cotangent), by an input's element or along
/// a random direction of the input.
struct GradcheckEntry {
  size_t input = 0;
  int cotangent = 0, direction = 0;       ///< 0: a single element; n: the n-th random one
  std::vector<int64_t> out_index, index;  ///< of single elements of output and input
  double analytic = 0, numeric = 0;
  double error_bar = 0;  ///< how far the differences themselves may be off; infinite where one of them overflowed
  double error = 0;      ///< |analytic - numeric|
  double scale = 0;      ///< the largest numeric derivative of its kind: by this input, single elements or random directions
  double relative = 0;   ///< error / scale
  /// Such as "dy[2,1]/dx0[2,1]", with random cotangent and direction "w1 dy/dx0 u2".
  std::string place() const;
};

/// An input of the sample, and the derivatives by it.
struct GradcheckInput {
  size_t number = 0;  ///< among the op's inputs
  Shape shape = {};
  DType dtype = DType::f64;
  bool requires_grad = true;
  double scale = 0;                              ///< the largest numeric derivative by a single element
  int64_t bad = 0, unverifiable = 0, total = 0;  ///< derivatives that are wrong, that differences cannot judge, and all
  std::vector<GradcheckEntry> top = {};          ///< at most five, the largest relative error first
  GradcheckEntry least_certain = {};             ///< the one with the largest error bar
  std::optional<double> common_factor = {};      ///< analytic over numeric, where all wrong derivatives agree in it
};

/// One rule of the contract and what came of it.
struct GradcheckFinding {
  std::string check;
  bool ok = true;
  double value = 0;    ///< the measured quantity, e.g. the worst relative error
  std::string detail;  ///< a sentence when not ok
};

struct GradcheckReport {
  std::string op;
  size_t sample = 0;
  uint64_t seed = 0;
  std::vector<Attr> attrs = {};
  std::vector<GradcheckInput> inputs = {};  ///< without those that are absent
  std::string device = "cpu", method = {};  ///< method: what was compared with what, in words
  double step = 0;                          ///< h of the differences, for an input x multiplied by max(1, |x|); 0 without differences
  double tolerance = 0;                     ///< of an input's largest derivative
  int64_t budget = 0;
  int resampled = 0;  ///< how often the inputs were redrawn because the differences could not judge
  GradcheckEntry worst = {};
  std::vector<GradcheckFinding> findings = {};
  std::vector<std::string> notes = {};
  std::string error = {}, skipped = {};
  double seconds = 0;

  GradcheckVerdict verdict() const;
  bool passed() const { return verdict() == GradcheckVerdict::pass; }
  /// A few lines for a person: the verdict, the worst entries, the rules that broke.
  std::string text() const;
};

struct GradcheckOptions {
  uint64_t seed = 1;
  double tolerance = 0;  ///< 0: the sample's own
  /// The Jacobian is compared in full when it has at most so many entries; a larger one through three random cotangents, three random
  /// directions of each input and as many of its elements as the budget allows, at least three.
  int64_t budget = 20000;
};

/// Checks one sample of an op against the whole contract. What the op throws becomes the verdict ERROR.
GradcheckReport gradcheck(const OpDef& op, size_t sample, const GradcheckOptions& options = {});
/// All samples of an op, and one last report on its bad shapes where it declares some.
std::vector<GradcheckReport> gradcheck(const OpDef& op, const GradcheckOptions& options = {});
/// That last report: each of the bad shapes must throw a ShapeError that names the op and every shape.
GradcheckReport gradcheck_bad_shapes(const OpDef& op);

/// Compares the kernels of a device with those of the CPU in float64 on one sample of an op: outputs and gradients in f64 and f32,
/// written and added, on misaligned memory, with inputs unchanged and the same bits on a second run. SKIPPED when the op has no kernels
/// for the device; throws what they throw.
GradcheckReport crosscheck(const OpDef& op, size_t sample, Device device, const GradcheckOptions& options = {});

using TapeFunction = std::function<Var(Tape&, std::span<const Var>)>;
/// Checks any function of tensors. f32 inputs are promoted to f64 (differences in f32 cannot verify a gradient); integer
/// inputs are passed through without gradient. A zero gradient counts as a failure.
GradcheckReport gradcheck(const std::string& name, const TapeFunction& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

/// |numeric - analytic| of one derivative over the step of the differences: it falls with the step while truncation rules, and rises
/// again when rounding does. Errors are relative to the largest derivative by the input, like the tolerance.
struct GradcheckCurve {
  GradcheckEntry entry;              ///< the worst of the sample
  std::vector<double> steps;         ///< h, falling from 1e-1 to 1e-12
  std::vector<double> central;       ///< (f(x+h) - f(x-h)) / 2h; NaN where it is not finite
  std::vector<double> extrapolated;  ///< from h and h/2, which the check compares
  double step = 0, tolerance = 0;    ///< those of the check
  GradcheckReport report;
};
/// Throws InputError where no derivative is compared, and Error with the op's message where it threw.
GradcheckCurve gradcheck_curve(const OpDef& op, size_t sample, const GradcheckOptions& options = {});

/// A deliberate error in a backward kernel, to prove that the check can fail.
struct GradcheckMutant {
  std::string op, mutant;
  bool applicable = false;  ///< false: no sample's gradient is changed by this mutant (e.g. transposing a vector)
  bool caught = false;
};
/// Runs every mutant of an op's backward through the check.
std::vector<GradcheckMutant> gradcheck_mutants(const OpDef& op, const GradcheckOptions& options = {});

}  // namespace sinkgrad
