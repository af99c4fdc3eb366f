// How a gradient is checked: draw inputs, run the backward under hostile conditions, compare with central differences.
// Every comparison is written !(error <= bound), so that NaN fails.
#include "core/gradcheck.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "core/gradcheck_case.h"

namespace sinkgrad {

using namespace detail;

namespace {

/// The largest difference of two runs on the same inputs; 0 only for the same bits.
double difference_of_runs(const Outcome& a, const Outcome& b) {
  const auto same = [](const Numbers& x, const Numbers& y) {
    return x.size() == y.size() && (x.empty() || !std::memcmp(x.data(), y.data(), x.size() * sizeof(double)));
  };
  bool equal = same(a.out, b.out);
  for (size_t k = 0; k < a.grads.size(); ++k) equal &= same(a.grads[k], b.grads[k]);
  return equal ? 0 : std::max({distance({a.out}, {b.out}), distance(a.grads, b.grads), 1e-300});
}

Numbers scaled(Numbers v, double factor) {
  for (double& a : v) a *= factor;
  return v;
}

/// a times one list of gradients, and `more` times another.
std::vector<Numbers> combined(std::vector<Numbers> g, double a, const std::vector<Numbers>& other, double more) {
  for (size_t k = 0; k < g.size(); ++k)
    for (size_t i = 0; i < g[k].size(); ++i) g[k][i] = a * g[k][i] + (k < other.size() ? more * other[k][i] : more);
  return g;
}

/// Fills a report that says on which case it is.
void check(const GradcheckCase& c, const GradcheckOptions& options, GradcheckReport& r) {
  const bool differentiable = std::any_of(r.inputs.begin(), r.inputs.end(), [](const GradcheckInput& in) { return in.requires_grad; });
  if (!differentiable && !c.zero_gradient) {
    r.skipped = "no input has a gradient, and the sample does not declare zero_gradient";
    return;
  }
  auto find = [&](const char* name, bool ok, double value, const std::string& detail) { r.findings.push_back({name, ok, value, ok ? "" : detail}); };
  const bool random = std::any_of(c.inputs.begin(), c.inputs.end(), [](const SampleInput& in) { return in.values.empty() && in.shape.count() > 0; });

  std::vector<Numbers> x;
  Numbers w;
  Outcome plain, written;
  Probes probes;
  Derivatives analytic, numeric;
  for (;; ++r.resampled) {
    x = draw(c, options.seed + static_cast<uint64_t>(r.resampled) * 1000003);
    plain = run(c.function, c, x, DType::f64, nullptr, Gradients::none);
    w = draw_cotangent(c, options.seed, plain.out.size());
    written = run(c.function, c, x, DType::f64, &w, Gradients::written);
    probes = probes_for(c, options, x, plain.out.size());
    numeric = c.true_gradient ? differences(c, x, probes) : derivatives(c.reference, c, x, probes);
    analytic = derivatives(c.function, c, x, probes);
    compare(c, probes, plain.shape, analytic, numeric, &r);
    if (unverifiable(r) == 0 || !random || r.resampled == 4) break;
  }
  r.method = method_of(c, probes);
  r.step = c.true_gradient ? kStep : 0;

  find("gradient", bad(r) == 0, r.worst.relative, "the backward disagrees with the differences, or leaves entries unwritten");
  const double size = largest(numeric.value);
  if (c.zero_gradient)
    find("zero gradient", unverifiable(r) > 0 || size <= 1e-7, size, "the sample declares a zero gradient, the numeric one is not zero");
  if (!c.zero_gradient && unverifiable(r) == 0) {
    find("not vacuous", size >= 1e-4, size, "the numeric gradient vanishes, so this sample checks nothing; declare zero_gradient or change it");
    for (Numbers& row : analytic.value) row = scaled(row, 1.001);
    GradcheckReport scratch = r;
    compare(c, probes, plain.shape, analytic, numeric, &scratch);
    find("can fail", bad(scratch) > 0, scratch.worst.relative, "a gradient scaled by 1.001 would pass");
  }

  const Outcome added = run(c.function, c, x, DType::f64, &w, Gradients::added);
  const double add_error = distance(added.grads, combined(written.grads, 2, {}, kPrefill));
  find("adds", add_error <= 1e-12, add_error, "with `add` set the gradient must be added to what is there, the same on a second backward");
  std::string shapes;
  for (const GradcheckInput& in : r.inputs) shapes += " " + in.shape.str();
  find("stays inside", added.guards_intact, 0, "the backward wrote outside a gradient; the inputs, and so their gradients, have shapes" + shapes);
  const Numbers zero(w.size(), 0.0);
  const double leak = largest(run(c.function, c, x, DType::f64, &zero, Gradients::written).grads);
  find("zero cotangent", leak == 0, leak, "a zero cotangent must give exactly zero gradients");
  // Factors of different size: a backward that bounds what comes in is linear near zero.
  const Numbers v = draw_cotangent(c, options.seed + 77, w.size()), both = combined({scaled(w, -0.75)}, 1, {v}, 1e3)[0];
  const Outcome other = run(c.function, c, x, DType::f64, &v, Gradients::written), sum = run(c.function, c, x, DType::f64, &both, Gradients::written);
  const double bend = distance(sum.grads, combined(written.grads, -0.75, other.grads, 1e3));
  find("linear", c.zero_gradient || bend <= 1e-10, bend, "the gradient must be linear in the cotangent: J'(a v + b w) = a J'v + b J'w");
  find("inputs unchanged", written.inputs_unchanged && added.inputs_unchanged, 0, "a kernel changed an input");
  const double wobble = std::max(difference_of_runs(run(c.function, c, x, DType::f64, &w, Gradients::written), written),
                                 difference_of_runs({.out = plain.out}, {.out = written.out}));
  find("repeats", wobble == 0, wobble, "two runs on the same inputs differ");

  if (c.inputs.size() >= 2 && c.requires_grad(1) && !c.inputs[0].integer && c.inputs[0].shape == c.inputs[1].shape) {
    auto equal = x;
    equal[1] = equal[0];
    const auto apart = run(c.function, c, equal, DType::f64, &w, Gradients::written).grads;
    auto f = [&](Tape& t, std::span<const Var> in) {
      std::vector<Var> twice(in.begin(), in.end());
      twice[1] = twice[0];
      return c.function(t, twice);
    };
    const auto once = run(f, c, equal, DType::f64, &w, Gradients::written).grads;
    const double e = distance({once[0]}, combined({apart[0]}, 1, {apart[1]}, 1));
    find("same input twice", e <= 1e-10, e, "f(x, x) must receive the sum of both gradients");
  }
  if (c.reference) {
    const Outcome ref = run(c.reference, c, x, DType::f64, &w, Gradients::written);
    const double forward = distance({written.out}, {ref.out}), backward = distance(written.grads, ref.grads);
    const bool vanish = c.zero_gradient && largest(written.grads) <= 1e-12 && largest(ref.grads) <= 1e-12;
    find("equals reference", forward <= 1e-12, forward, "the forward differs from the composed reference");
    find("backward equals reference", vanish || backward <= 1e-9, backward, "the backward differs from the composed reference");
  }

  auto rounded = x;
  for (Numbers& numbers : rounded)
    for (double& a : numbers) a = static_cast<float>(a);
  Numbers w32 = w;
  for (double& a : w32) a = static_cast<float>(a);
  const Outcome wide = run(c.function, c, rounded, DType::f64, &w32, Gradients::written);
  const Outcome narrow = run(c.function, c, rounded, DType::f32, &w32, Gradients::written);
  const double forward32 = distance({narrow.out}, {wide.out});
  const double backward32 = c.zero_gradient ? largest(narrow.grads) : distance(narrow.grads, wide.grads);
  find("f32 forward", forward32 <= 2e-5, forward32, "f32 is too far from f64");
  find("f32 backward", backward32 <= 1e-4, backward32, "f32 is too far from f64");
}

/// The check with its time; what the function throws is its result.
GradcheckReport report(GradcheckCase c, const GradcheckOptions& options) {
  if (options.tolerance > 0) c.tolerance = options.tolerance;
  GradcheckReport r = report_of(c, options);
  const auto start = std::chrono::steady_clock::now();
  try {
    check(c, options, r);
  } catch (const std::exception& e) {
    r.error = e.what();
  }
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return r;
}

}  // namespace

GradcheckReport gradcheck(const OpDef& op, size_t sample, const GradcheckOptions& options) {
  if (op.bad_shapes && sample == op.samples().size()) return gradcheck_bad_shapes(op);
  GradcheckReport r = report(case_of(op, sample), options);
  r.sample = sample;
  return r;
}

std::vector<GradcheckReport> gradcheck(const OpDef& op, const GradcheckOptions& options) {
  std::vector<GradcheckReport> reports;
  const size_t count = op.samples().size() + (op.bad_shapes ? 1 : 0);
  for (size_t s = 0; s < count; ++s) reports.push_back(gradcheck(op, s, options));
  return reports;
}

GradcheckReport gradcheck(const std::string& name, const TapeFunction& function, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  GradcheckCase c{.name = name, .inputs = {}, .function = function, .tolerance = 2e-7, .stream = name};
  bool promoted = false;
  for (const Tensor& t : inputs) {
    promoted |= t.dtype() == DType::f32;
    c.inputs.push_back({.shape = t.shape(), .integer = !is_float(t.dtype()), .values = to_doubles(t.view())});
  }
  GradcheckReport r = report(c, options);
  if (promoted) r.notes.push_back("f32 inputs were promoted to f64: differences in f32 cannot verify a gradient");
  return r;
}

}  // namespace sinkgrad
