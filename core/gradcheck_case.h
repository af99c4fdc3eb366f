// One case of the gradient check, run once: shared by the differences (gradcheck.cpp) and the comparison of devices (crosscheck.cpp).
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
};

/// What added gradients start from.
constexpr double kPrefill = 2.5;
enum class Gradients { none, written, added };

/// Runs the function on NaN-filled memory, and its backward if `cotangent` is given; added gradients twice, starting at kPrefill
/// between guards.
Outcome run(const TapeFunction& f, const GradcheckCase& c, const std::vector<Numbers>& x, DType dtype, const Numbers* cotangent, Gradients mode,
            Device device = Device::cpu());

}  // namespace sinkgrad::detail
