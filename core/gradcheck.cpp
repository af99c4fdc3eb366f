// How a gradient is checked: draw inputs, run the backward under hostile conditions, compare with central differences.
// Every comparison is written !(error <= bound), so that NaN fails.
#include "core/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/gradcheck_case.h"

namespace sinkgrad {

using namespace detail;

namespace {

struct Numeric {
  std::vector<Numbers> value, bar;
};

/// d<f(x), w>/dx by central differences at h and h/2, extrapolated; their distance is the error bar.
Numeric differences(const GradcheckCase& c, const std::vector<Numbers>& x, const Numbers& w) {
  Numeric n;
  auto p = x;
  auto inner = [&] {
    const Numbers y = run(c.function, c, p, DType::f64, nullptr, Gradients::none).out;
    double s = 0;
    for (size_t m = 0; m < w.size(); ++m) s += w[m] == 0 || !std::isfinite(y[m]) ? 0 : w[m] * y[m];
    return s;
  };
  for (size_t k = 0; k < x.size(); ++k) {
    n.value.emplace_back(x[k].size());
    n.bar.emplace_back(x[k].size());
    if (c.inputs[k].integer || !c.inputs[k].differentiable) continue;
    for (size_t i = 0; i < x[k].size(); ++i) {
      auto central = [&](double h) {
        p[k][i] = x[k][i] + h;
        const double up = inner();
        p[k][i] = x[k][i] - h;
        const double down = inner();
        p[k][i] = x[k][i];
        return (up - down) / (2 * h);
      };
      const double h = 2e-4 * std::max(1.0, std::abs(x[k][i]));
      const double coarse = central(h), fine = central(h / 2);
      n.value[k][i] = (4 * fine - coarse) / 3;
      n.bar[k][i] = std::abs(fine - coarse);
    }
  }
  return n;
}

/// Fills the report's worst entry and counts; returns the worst relative error.
double compare(const GradcheckCase& c, const std::vector<Numbers>& analytic, const Numeric& numeric, GradcheckReport* r) {
  const double all = largest(numeric.value);
  r->worst = {};
  r->bad_entries = r->total_entries = 0;
  for (size_t k = 0; k < analytic.size(); ++k) {
    const double scale = c.zero_gradient ? 1 : std::max({largest(numeric.value[k]), 1e-3 * all, 1e-9});
    for (size_t i = 0; i < analytic[k].size(); ++i) {
      const double error = std::abs(analytic[k][i] - numeric.value[k][i]) / scale;
      ++r->total_entries;
      if (!(error <= r->tolerance)) ++r->bad_entries;
      if (worse(error, r->worst.error))
        r->worst = {k, unflatten(c.inputs[k].shape, i), analytic[k][i], numeric.value[k][i], numeric.bar[k][i], error};
    }
  }
  return r->worst.error;
}

GradcheckReport check(const GradcheckCase& c, const GradcheckOptions& options) {
  GradcheckReport r{.op = c.name, .seed = options.seed, .tolerance = options.tolerance > 0 ? options.tolerance : c.tolerance};
  for (const SampleInput& in : c.inputs)
    if (!in.absent) r.shapes.push_back(in.shape);
  auto find = [&](const char* name, bool ok, double value, const std::string& detail) { r.findings.push_back({name, ok, value, ok ? "" : detail}); };

  std::vector<Numbers> x;
  Numbers w;
  Outcome written;
  Numeric numeric;
  for (;; ++r.resampled) {
    x = draw(c, options.seed + static_cast<uint64_t>(r.resampled) * 1000003);
    w = draw_cotangent(c, options.seed, run(c.function, c, x, DType::f64, nullptr, Gradients::none).out.size());
    written = run(c.function, c, x, DType::f64, &w, Gradients::written);
    if (c.true_gradient)
      numeric = differences(c, x, w);
    else
      numeric.value = numeric.bar = run(c.reference, c, x, DType::f64, &w, Gradients::written).grads;
    // At a smooth point both steps agree; where they do not, a kink lies between them and the difference means nothing.
    const bool kink = c.true_gradient && compare(c, written.grads, numeric, &r) > r.tolerance &&
                      largest(numeric.bar) > 1e-3 * std::max(1e-9, largest(numeric.value));
    if (!kink || r.resampled == 4) break;
  }

  const double error = compare(c, written.grads, numeric, &r), size = largest(numeric.value);
  find("gradient", error <= r.tolerance, error, "the backward disagrees with central differences, or leaves entries unwritten");
  if (c.zero_gradient)
    find("zero gradient", size <= 1e-7, size, "the sample declares a zero gradient, the numeric one is not zero");
  else {
    find("not vacuous", size >= 1e-4, size, "the numeric gradient vanishes, so this sample checks nothing; declare zero_gradient or change it");
    auto scaled = written.grads;
    for (Numbers& g : scaled)
      for (double& v : g) v *= 1.001;
    GradcheckReport scratch{.tolerance = r.tolerance};
    const double scaled_error = compare(c, scaled, numeric, &scratch);
    find("can fail", !(scaled_error <= r.tolerance), scaled_error, "a gradient scaled by 1.001 would pass");
  }

  const Outcome added = run(c.function, c, x, DType::f64, &w, Gradients::added);
  auto expected = written.grads;
  for (Numbers& g : expected)
    for (double& v : g) v = kPrefill + 2 * v;
  const double add_error = distance(added.grads, expected);
  find("adds", add_error <= 1e-12, add_error, "with `add` set the gradient must be added to what is there, the same on a second backward");
  std::string shapes;
  for (const Shape& s : r.shapes) shapes += " " + s.str();
  find("stays inside", added.guards_intact, 0, "the backward wrote outside a gradient; the inputs, and so their gradients, have shapes" + shapes);
  const Numbers zero(w.size(), 0.0);
  const double leak = largest(run(c.function, c, x, DType::f64, &zero, Gradients::written).grads);
  find("zero cotangent", leak == 0, leak, "a zero cotangent must give exactly zero gradients");
  find("inputs unchanged", written.inputs_unchanged && added.inputs_unchanged, 0, "a kernel changed an input");
  const Outcome again = run(c.function, c, x, DType::f64, &w, Gradients::written);
  auto same = [](const Numbers& a, const Numbers& b) {
    return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), a.size() * sizeof(double)));
  };
  bool repeats = same(again.out, written.out);
  for (size_t k = 0; k < written.grads.size(); ++k) repeats &= same(again.grads[k], written.grads[k]);
  find("repeats", repeats, 0, "two runs differ in their bits");

  if (c.inputs.size() >= 2 && c.inputs[1].differentiable && !c.inputs[0].integer && !c.inputs[1].integer && !c.inputs[1].absent &&
      c.inputs[0].shape == c.inputs[1].shape) {
    auto equal = x;
    equal[1] = equal[0];
    const auto apart = run(c.function, c, equal, DType::f64, &w, Gradients::written).grads;
    auto f = [&](Tape& t, std::span<const Var> in) {
      std::vector<Var> twice(in.begin(), in.end());
      twice[1] = twice[0];
      return c.function(t, twice);
    };
    const auto once = run(f, c, equal, DType::f64, &w, Gradients::written).grads;
    Numbers sum = apart[0];
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += apart[1][i];
    const double e = distance({once[0]}, {sum});
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
  for (Numbers& v : rounded)
    for (double& a : v) a = static_cast<float>(a);
  Numbers w32 = w;
  for (double& a : w32) a = static_cast<float>(a);
  const Outcome wide = run(c.function, c, rounded, DType::f64, &w32, Gradients::written);
  const Outcome narrow = run(c.function, c, rounded, DType::f32, &w32, Gradients::written);
  const double forward32 = distance({narrow.out}, {wide.out});
  const double backward32 = c.zero_gradient ? largest(narrow.grads) : distance(narrow.grads, wide.grads);
  find("f32 forward", forward32 <= 2e-5, forward32, "f32 is too far from f64");
  find("f32 backward", backward32 <= 1e-4, backward32, "f32 is too far from f64");
  return r;
}

}  // namespace

GradcheckReport gradcheck(const OpDef& op, size_t sample, const GradcheckOptions& options) {
  if (op.bad_shapes && sample == op.samples().size()) return gradcheck_bad_shapes(op);
  const GradcheckCase c = case_of(op, sample);
  GradcheckReport r = check(c, options);
  r.sample = sample;
  r.attrs.assign(c.attrs.items().begin(), c.attrs.items().end());
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
  GradcheckReport r = check(c, options);
  if (promoted) r.notes.push_back("f32 inputs were promoted to f64: differences in f32 cannot verify a gradient");
  return r;
}

}  // namespace sinkgrad
