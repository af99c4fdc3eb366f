// The gradient check: float64 central differences against a backward, and the rest of the op contract.
//
//   GradcheckReport r = gradcheck("my loss", [](Tape&, std::span<const Var> x) { return mean(mul(x[0], x[1])); }, {a, b});
//   if (!r.passed()) std::cerr << r.text();
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/tape.h"

namespace sinkgrad {

/// The entry where analytic and numeric gradient differ most.
struct GradcheckEntry {
  size_t input = 0;
  std::vector<int64_t> index;
  double analytic = 0, numeric = 0, error_bar = 0;
  double error = 0;  ///< |analytic - numeric| over the largest numeric entry
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
  std::vector<Shape> shapes;
  std::vector<Attr> attrs;
  double tolerance = 0;
  int bad_entries = 0, total_entries = 0;
  int resampled = 0;  ///< how often the inputs were redrawn because a kink lay within the difference step
  GradcheckEntry worst;
  std::vector<GradcheckFinding> findings;
  std::vector<std::string> notes;

  bool passed() const;
  /// A few lines for a person: the verdict, the worst entry, the rules that broke.
  std::string text() const;
};

struct GradcheckOptions {
  uint64_t seed = 1;
  double tolerance = 0;  ///< 0: the sample's own
};

/// Checks one sample of an op against the whole contract.
GradcheckReport gradcheck(const OpDef& op, size_t sample, const GradcheckOptions& options = {});
/// All samples of an op, and one last report on its bad shapes where it declares some.
std::vector<GradcheckReport> gradcheck(const OpDef& op, const GradcheckOptions& options = {});
/// That last report: each of the bad shapes must throw a ShapeError that names the op and every shape.
GradcheckReport gradcheck_bad_shapes(const OpDef& op);

/// Compares the kernels of a device with those of the CPU in float64 on one sample of an op: outputs and gradients in f64 and f32,
/// written and added, on misaligned memory, with inputs unchanged and the same bits on a second run.
GradcheckReport crosscheck(const OpDef& op, size_t sample, Device device, const GradcheckOptions& options = {});

using TapeFunction = std::function<Var(Tape&, std::span<const Var>)>;
/// Checks any function of tensors. f32 inputs are promoted to f64 (differences in f32 cannot verify a gradient); integer
/// inputs are passed through without gradient. A zero gradient counts as a failure.
GradcheckReport gradcheck(const std::string& name, const TapeFunction& function, const std::vector<Tensor>& inputs,
                          const GradcheckOptions& options = {});

/// A deliberate error in a backward kernel, to prove that the check can fail.
struct GradcheckMutant {
  std::string op, mutant;
  bool applicable = false;  ///< false: no sample's gradient is changed by this mutant (e.g. transposing a vector)
  bool caught = false;
};
/// Runs every mutant of an op's backward through the check.
std::vector<GradcheckMutant> gradcheck_mutants(const OpDef& op, const GradcheckOptions& options = {});

}  // namespace sinkgrad
