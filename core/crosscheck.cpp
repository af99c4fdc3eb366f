// The comparison of a device with the CPU. It needs no differences: the CPU's gradient has been checked against those.
#include <algorithm>
#include <cstring>

#include "core/gradcheck_case.h"

namespace sinkgrad {

using namespace detail;

GradcheckReport crosscheck(const OpDef& op, size_t sample, Device device, const GradcheckOptions& options) {
  const GradcheckCase c = case_of(op, sample);
  GradcheckReport r = report_of(c, options);
  r.sample = sample;
  r.device = device.backend().name();
  r.method = "outputs and gradients in f64 and f32 against the CPU in f64";
  if (!(device.kind() == DeviceKind::cpu ? op.cpu : op.cuda).forward) {
    r.skipped = cat(op.name, " has no kernels for ", r.device);
    return r;
  }
  auto find = [&](const std::string& name, bool ok, double value, const char* detail) { r.findings.push_back({name, ok, value, ok ? "" : detail}); };

  for (const DType dtype : {DType::f64, DType::f32}) {
    auto rounded = [&](Numbers v) {
      if (dtype == DType::f32)
        for (double& a : v) a = static_cast<float>(a);
      return v;
    };
    auto x = draw(c, options.seed);
    for (Numbers& v : x) v = rounded(v);
    const size_t count = run(c.function, c, x, DType::f64, nullptr, Gradients::none).out.size();
    const Numbers w = rounded(draw_cotangent(c, options.seed, count));
    const Outcome truth = run(c.function, c, x, DType::f64, &w, Gradients::written);
    const Outcome written = run(c.function, c, x, dtype, &w, Gradients::written, device);
    const Outcome added = run(c.function, c, x, dtype, &w, Gradients::added, device);
    const Outcome again = run(c.function, c, x, dtype, &w, Gradients::written, device);

    // A f32 gradient may lose to cancellation what its inputs lost to rounding; the CPU's f32 is held to the same bounds.
    const double out_bound = dtype == DType::f64 ? 1e-11 : 2e-5, grad_bound = dtype == DType::f64 ? 1e-9 : 1e-4;
    const std::string suffix = std::string(" ") + name_of(dtype);
    auto gradient_error = [&](const std::vector<Numbers>& got, double start, double times) {
      auto expected = truth.grads;
      for (Numbers& g : expected)
        for (double& v : g) v = start + times * v;
      if (!c.zero_gradient || start != 0) return distance(got, expected);
      return largest(got);
    };
    const double out = distance({written.out}, {truth.out}), grad = gradient_error(written.grads, 0, 1),
                 add = gradient_error(added.grads, kPrefill, 2);
    r.worst.relative = std::max({r.worst.relative, out, grad, add});
    find("forward" + suffix, out <= out_bound, out, "the output differs from that of the CPU in f64");
    find("backward" + suffix, grad <= grad_bound, grad, "a gradient differs from that of the CPU in f64, or has unwritten entries");
    find("adds" + suffix, add <= grad_bound, add, "with `add` set, on misaligned memory, the gradient must be added to what is there");
    find("stays inside" + suffix, added.guards_intact, 0, "the backward wrote outside a gradient");
    find("inputs unchanged" + suffix, written.inputs_unchanged && added.inputs_unchanged, 0, "a kernel changed an input");
    const double bits = distance({again.out}, {written.out}) + distance(again.grads, written.grads);
    find("repeats" + suffix, bits == 0, bits, "a second run gave other bits");
  }
  return r;
}

}  // namespace sinkgrad
