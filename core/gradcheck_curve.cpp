// The error of one difference quotient over its step: the picture of why the check steps as it does.
#include <algorithm>
#include <cmath>

#include "core/gradcheck_case.h"

namespace sinkgrad {

using namespace detail;

namespace {

constexpr int kPerDecade = 4;

/// The cotangent and the direction of an entry of the report, as the check drew them.
Probes probe_of(const GradcheckCase& c, const GradcheckOptions& options, const std::vector<Numbers>& x, size_t outputs, const Shape& out,
                const GradcheckEntry& e) {
  const Probes all = probes_for(c, options, x, outputs);
  Probes one{.outputs = outputs};
  for (size_t j = 0; j < all.cotangent_count() && one.cotangents.empty(); ++j)
    if (e.cotangent > 0 ? static_cast<int>(j) + 1 == e.cotangent : unflatten(out, j) == e.out_index) one.cotangents = {all.cotangent(j)};
  for (const Direction& d : all.directions)
    if (d.input == e.input && d.number == e.direction && (d.number > 0 || unflatten(c.inputs[e.input].shape, d.element) == e.index))
      one.directions = {d};
  return one;
}

}  // namespace

GradcheckCurve gradcheck_curve(const OpDef& op, size_t sample, const GradcheckOptions& options) {
  const GradcheckCase c = case_of(op, sample);
  require<InputError>(c.true_gradient, op.name, ": sample ", sample, " has a backward that is not the derivative, so no difference tends to it");
  GradcheckCurve curve{.report = gradcheck(op, sample, options)};
  const GradcheckReport& r = curve.report;
  require(r.error.empty(), op.name, ": sample ", sample, " threw: ", r.error);
  const bool any = std::any_of(r.inputs.begin(), r.inputs.end(), [](const GradcheckInput& in) { return !in.top.empty(); });
  require<InputError>(any, op.name, ": sample ", sample, " has no derivative to compare");
  curve.entry = r.worst;
  curve.step = r.step;
  curve.tolerance = r.tolerance;

  const auto x = draw(c, options.seed + static_cast<uint64_t>(r.resampled) * 1000003);
  const Outcome middle = run(c.function, c, x, DType::f64, nullptr, Gradients::none);
  const Probes probe = probe_of(c, options, x, middle.out.size(), middle.shape, r.worst);
  const Direction& d = probe.directions.at(0);
  const auto error_of = [&](double derivative) { return std::abs(derivative - r.worst.analytic) / r.worst.scale; };
  for (int i = kPerDecade; i <= 12 * kPerDecade; ++i) {
    const double step = std::pow(10.0, -static_cast<double>(i) / kPerDecade), h = step * step_scale(x, d);
    const double far = probe.project(difference(c, x, middle.out, d, h).first)[0],
                 near = probe.project(difference(c, x, middle.out, d, h / 2).first)[0];
    curve.steps.push_back(step);
    curve.central.push_back(error_of(far));
    curve.extrapolated.push_back(error_of((4 * near - far) / 3));
  }
  return curve;
}

}  // namespace sinkgrad
