// Derivatives by differences and by a backward, and their comparison entry by entry.
// Every comparison is written !(error <= bound), so that NaN fails.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/gradcheck_case.h"

namespace sinkgrad::detail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kEpsilon = std::numeric_limits<double>::epsilon();
constexpr int kRandom = 3;  // cotangents, directions and elements of a Jacobian that is too large to compare in full
constexpr size_t kTop = 5;
constexpr int kSteps = 4;                         // where the function bends too much for one step, the next is shorter by the refinement
constexpr double kRefinement = 16, kGain = 1000;  // which makes truncation 256 times smaller: what improves by more is chance
constexpr double kThird = 0.37;                   // a third step that shares no rounding with h and h/2

size_t index(int64_t n) { return static_cast<size_t>(n); }

std::vector<Numbers> moved(std::vector<Numbers> x, const Direction& d, double by) {
  Numbers& v = x[d.input];
  if (d.along.empty()) v[d.element] += by;
  for (size_t i = 0; i < d.along.size(); ++i) v[i] += by * d.along[i];
  return x;
}

/// Elements that do not move are equal, be they infinite.
Numbers minus(const Numbers& a, const Numbers& b, double factor) {
  Numbers d(a.size());
  for (size_t i = 0; i < d.size(); ++i) d[i] = a[i] == b[i] ? 0 : (a[i] - b[i]) * factor;
  return d;
}

/// Rounding noise may by chance not show in one bar, but shows in most: no bar is below the upper quartile of those that are not zero.
void lift_to_noise(const Probes& probes, std::vector<Numbers>& bars) {
  for (size_t begin = 0, end = 0; begin < bars.size(); begin = end) {  // the directions of an input follow each other
    Numbers known;
    for (; end < bars.size() && probes.directions[end].input == probes.directions[begin].input; ++end)
      for (double b : bars[end])
        if (b > 0 && std::isfinite(b)) known.push_back(b);
    if (known.empty()) continue;
    const auto quartile = known.begin() + static_cast<ptrdiff_t>((known.size() - 1) * 3 / 4);
    std::nth_element(known.begin(), quartile, known.end());
    for (size_t i = begin; i < end; ++i)
      for (double& b : bars[i]) b = std::max(b, *quartile);
  }
}

/// The larger error first, NaN before all.
bool before(const GradcheckEntry& a, const GradcheckEntry& b) { return std::isnan(a.relative) ? !std::isnan(b.relative) : a.relative > b.relative; }

}  // namespace

std::string method_of(const GradcheckCase& c, const Probes& probes) {
  std::string s;
  if (probes.cotangents.empty()) {
    s = cat("full Jacobian ", probes.outputs, " x ", probes.directions.size());
  } else {
    const auto elements = std::count_if(probes.directions.begin(), probes.directions.end(), [](const Direction& d) { return d.number == 0; });
    int64_t all = 0;
    for (size_t k = 0; k < c.inputs.size(); ++k) all += c.requires_grad(k) ? c.inputs[k].shape.count() : 0;
    s = cat(kRandom, " random cotangents w, ", kRandom, " random directions u of each input and ", elements, " of ", all, " elements");
  }
  return c.true_gradient ? s : s + ", against the backward of the reference";
}

Numbers Probes::cotangent(size_t j) const {
  if (!cotangents.empty()) return cotangents[j];
  Numbers unit(outputs);
  unit[j] = 1;
  return unit;
}

Numbers Probes::project(const Numbers& y, bool magnitudes) const {
  if (cotangents.empty()) return y;
  Numbers s(cotangents.size());
  for (size_t j = 0; j < s.size(); ++j)
    for (size_t i = 0; i < y.size(); ++i) s[j] += (magnitudes ? std::abs(cotangents[j][i]) : cotangents[j][i]) * y[i];
  return s;
}

Probes probes_for(const GradcheckCase& c, const GradcheckOptions& options, const std::vector<Numbers>& x, size_t outputs) {
  Probes p{.outputs = outputs};
  size_t elements = 0;
  for (size_t k = 0; k < x.size(); ++k) elements += c.requires_grad(k) ? x[k].size() : 0;
  const auto budget = static_cast<double>(options.budget);
  const bool full = static_cast<double>(elements) * static_cast<double>(outputs) <= budget;
  if (!full)
    for (int n = 0; n < kRandom; ++n) p.cotangents.push_back(draw_cotangent(c, options.seed + index(n), outputs));
  RandomStream random(options.seed, c.stream + "/directions");
  for (size_t k = 0; k < x.size(); ++k) {
    if (!c.requires_grad(k)) continue;
    const size_t count = x[k].size();
    const auto wanted = static_cast<size_t>(std::max<double>(kRandom, budget / static_cast<double>(std::max<size_t>(outputs, 1))));
    const auto order = full ? std::vector<uint32_t>() : random.permutation(static_cast<uint32_t>(count));
    for (size_t i = 0; i < (full ? count : std::min(count, wanted)); ++i) p.directions.push_back({.input = k, .element = full ? i : order[i]});
    for (int n = 1; !full && n <= kRandom; ++n) {
      Direction d{.input = k, .number = n};
      for (double v : x[k]) d.along.push_back(random.normal() * std::max(1.0, std::abs(v)));
      p.directions.push_back(d);
    }
  }
  return p;
}

Difference difference(const GradcheckCase& c, const std::vector<Numbers>& x, const Numbers& middle, const Direction& d, double h) {
  const auto at = [&](double by) { return run(c.function, c, moved(x, d, by), DType::f64, nullptr, Gradients::none).out; };
  const Numbers up = at(h), down = at(-h);
  Numbers rounding(up.size());
  for (size_t i = 0; i < up.size(); ++i) rounding[i] = up[i] == down[i] ? 0 : kEpsilon * std::max(std::abs(up[i]), std::abs(down[i])) / h;
  return {minus(up, down, 1 / (2 * h)), minus(minus(up, middle, 1 / h), minus(middle, down, 1 / h), 1), rounding};
}

double step_scale(const std::vector<Numbers>& x, const Direction& d) { return d.along.empty() ? std::max(1.0, std::abs(x[d.input][d.element])) : 1; }

Derivatives differences(const GradcheckCase& c, const std::vector<Numbers>& x, const Probes& probes) {
  Derivatives n;
  const Numbers middle = run(c.function, c, x, DType::f64, nullptr, Gradients::none).out;
  for (const Direction& d : probes.directions) {
    Numbers value(probes.cotangent_count()), bar(value.size(), kInfinity);
    double h = kStep * step_scale(x, d);
    for (int attempt = 0; attempt < kSteps; ++attempt, h /= kRefinement) {
      const Difference coarse = difference(c, x, middle, d, h), fine = difference(c, x, middle, d, h / 2);
      const Numbers third = probes.project(difference(c, x, middle, d, kThird * h).first);
      const Numbers far = probes.project(coarse.first), near = probes.project(fine.first), rounding = probes.project(fine.rounding, true);
      const Numbers bend = probes.project(coarse.second), half_bend = probes.project(fine.second);
      double uncertain = 0;
      for (size_t j = 0; j < far.size(); ++j) {
        const double spread = std::max(std::abs(near[j] - far[j]), std::abs(near[j] - third[j]));
        const double v = (4 * near[j] - far[j]) / 3, b = spread + std::abs(bend[j] - 2 * half_bend[j]) + rounding[j];
        if (b < bar[j] && std::isfinite(v)) {
          value[j] = v;
          bar[j] = attempt > 0 && std::isfinite(bar[j]) ? std::max(b, bar[j] / kGain) : b;
        }
        uncertain = std::max(uncertain, bar[j]);
      }
      if (uncertain <= c.tolerance * largest(value)) break;
    }
    n.value.push_back(value);
    n.bar.push_back(bar);
  }
  lift_to_noise(probes, n.bar);
  return n;
}

Derivatives derivatives(const TapeFunction& f, const GradcheckCase& c, const std::vector<Numbers>& x, const Probes& probes) {
  const size_t rows = probes.directions.size(), columns = probes.cotangent_count();
  Derivatives n{std::vector<Numbers>(rows, Numbers(columns)), std::vector<Numbers>(rows, Numbers(columns))};
  for (size_t j = 0; j < columns; ++j) {
    const Numbers w = probes.cotangent(j);
    const auto grads = run(f, c, x, DType::f64, &w, Gradients::written).grads;
    for (size_t i = 0; i < rows; ++i) {
      const Direction& d = probes.directions[i];
      const Numbers& g = grads[d.input];
      if (d.along.empty()) n.value[i][j] = g[d.element];
      for (size_t e = 0; e < d.along.size(); ++e) n.value[i][j] += g[e] * d.along[e];
    }
  }
  return n;
}

void compare(const GradcheckCase& c, const Probes& probes, const Shape& out, const Derivatives& analytic, const Derivatives& numeric,
             GradcheckReport* r) {
  // Along random directions derivatives are larger than by single elements: each kind has its own scale.
  const auto largest_of = [&](auto counts) {
    double m = 0;
    for (size_t i = 0; i < probes.directions.size(); ++i)
      for (size_t j = 0; j < numeric.value[i].size(); ++j)
        if (counts(probes.directions[i]) && std::isfinite(numeric.bar[i][j])) m = std::max(m, std::abs(numeric.value[i][j]));
    return m;
  };
  const double all = largest_of([](const Direction&) { return true; });
  const auto scale_of = [&](size_t input, bool random) {
    const double own = largest_of([&](const Direction& d) { return d.input == input && (d.number > 0) == random; });
    return c.zero_gradient ? 1 : std::max({own, 1e-3 * all, 1e-9});
  };
  const GradcheckEntry* worst = nullptr;
  size_t reported = 0;
  for (size_t k = 0; k < c.inputs.size(); ++k) {
    if (c.inputs[k].absent) continue;
    GradcheckInput& input = r->inputs[reported++];
    input.bad = input.unverifiable = input.total = 0;
    input.top.clear();
    input.least_certain = {};
    if (!c.requires_grad(k)) continue;
    input.common_factor = {};
    const double single = scale_of(k, false), random = scale_of(k, true);
    double least = kInfinity, greatest = -kInfinity;  // factor of the wrong derivatives
    bool has_factor = true;                           // false once a wrong derivative is no finite multiple of the right one
    input.scale = single;
    for (size_t i = 0; i < probes.directions.size(); ++i) {
      const Direction& d = probes.directions[i];
      if (d.input != k) continue;
      const double scale = d.number > 0 ? random : single, bound = r->tolerance * scale;
      for (size_t j = 0; j < numeric.value[i].size(); ++j) {
        const double a = analytic.value[i][j], n = numeric.value[i][j], bar = numeric.bar[i][j], error = std::abs(a - n);
        const bool verifiable = bar <= bound;
        const bool wrong = std::isfinite(bar) && !(error <= (verifiable ? bound : 4 * bar));
        ++input.total;
        input.bad += wrong;
        input.unverifiable += !verifiable && !wrong;
        if (wrong && !(std::max(std::abs(a), std::abs(n)) <= 1e-3 * scale)) {
          has_factor &= std::isfinite(a / n);
          least = std::min(least, a / n);
          greatest = std::max(greatest, a / n);
        }
        GradcheckEntry e{.input = k,
                         .cotangent = probes.cotangents.empty() ? 0 : static_cast<int>(j) + 1,
                         .direction = d.number,
                         .analytic = a,
                         .numeric = n,
                         .error_bar = bar,
                         .error = error,
                         .scale = scale,
                         .relative = std::isfinite(bar) ? error / scale : 0};
        const bool among_top = input.top.size() < kTop || before(e, input.top.back()), uncertain = bar > input.least_certain.error_bar;
        if (!among_top && !uncertain) continue;
        if (probes.cotangents.empty()) e.out_index = unflatten(out, j);
        if (d.along.empty()) e.index = unflatten(c.inputs[k].shape, d.element);
        if (uncertain) input.least_certain = e;
        if (!among_top) continue;
        if (input.top.size() == kTop) input.top.pop_back();
        input.top.insert(std::upper_bound(input.top.begin(), input.top.end(), e, before), e);
      }
    }
    has_factor &= least <= greatest && greatest - least <= 1e-3 * std::max(std::abs(greatest), std::abs(least));
    if (input.bad > 1 && has_factor) input.common_factor = (least + greatest) / 2;
    if (!input.top.empty() && (!worst || before(input.top[0], *worst))) worst = &input.top[0];
  }
  r->worst = worst ? *worst : GradcheckEntry{};
}

int64_t bad(const GradcheckReport& r) {
  int64_t n = 0;
  for (const GradcheckInput& in : r.inputs) n += in.bad;
  return n;
}

int64_t unverifiable(const GradcheckReport& r) {
  int64_t n = 0;
  for (const GradcheckInput& in : r.inputs) n += in.unverifiable;
  return n;
}

}  // namespace sinkgrad::detail
