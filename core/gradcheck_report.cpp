// What a gradient check says to a person, the verdict, and the check of an op's declared bad shapes.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/gradcheck.h"

namespace sinkgrad {
namespace {

/// "x0[2,1]"; "x0" of rank 0.
std::string element(const std::string& name, const std::vector<int64_t>& index) {
  return index.empty() ? name : fmt::format("{}[{}]", name, fmt::join(index, ","));
}

std::string heading(const GradcheckReport& r) {
  std::string s = r.op;
  for (const Attr& a : r.attrs) s += fmt::format(" {}={}", a.name, a.value);
  s += " ";
  for (const GradcheckInput& in : r.inputs) s += fmt::format(" x{}:{}{}", in.number, name_of(in.dtype), in.shape.str());
  s += fmt::format("  {}  sample {}  seed {}  {}\n", r.device, r.sample, r.seed, name_of(r.verdict()));
  if (!r.method.empty()) s += fmt::format("  {}{}\n", r.method, r.step > 0 ? fmt::format(", central differences with h {:.0e}", r.step) : "");
  return s;
}

std::string numbers(const GradcheckEntry& e) {
  return fmt::format("analytic {:.6e}  numeric {:.6e} +- {:.0e}  abs {:.1e}  rel {:.1e}", e.analytic, e.numeric, e.error_bar, e.error, e.relative);
}

/// What is to be said of the derivatives by one input; nothing when all are right.
std::string about_input(const GradcheckReport& r, const GradcheckInput& in) {
  std::string s;
  if (in.bad > 0) {
    s += fmt::format("  FAIL  input {}  {} of {} entries wrong, worst at {}\n        {}\n", in.number, in.bad, in.total, in.top[0].place(),
                     numbers(in.top[0]));
    s += fmt::format("        tolerance {:.0e} of the largest entry, {:.3e}\n", r.tolerance, in.top[0].scale);
    if (in.common_factor && std::abs(*in.common_factor - 1) > 1e-3)
      s += fmt::format("        every wrong entry is {:.4g} times what it should be\n", *in.common_factor);
    const size_t listed = std::min(in.top.size(), static_cast<size_t>(in.bad));
    if (listed > 1) s += fmt::format("        the {} worst:\n", listed);
    for (size_t i = 0; listed > 1 && i < listed; ++i)
      s += fmt::format("          {:<28} analytic {:>13.6e}  numeric {:>13.6e}  rel {:.1e}\n", in.top[i].place(), in.top[i].analytic,
                       in.top[i].numeric, in.top[i].relative);
  }
  if (in.unverifiable > 0)
    s += fmt::format(
        "  ????  input {}  {} of {} entries cannot be verified, least of all {}\n        {}\n        the differences are less certain than the "
        "tolerance, {:.0e} of {:.3e}: a kink, cancellation or overflow within the step\n",
        in.number, in.unverifiable, in.total, in.least_certain.place(), numbers(in.least_certain), r.tolerance, in.least_certain.scale);
  return s;
}

}  // namespace

const char* name_of(GradcheckVerdict v) {
  constexpr const char* kNames[] = {"PASS", "SKIPPED", "UNVERIFIABLE", "NONDETERMINISTIC", "FAIL", "ERROR"};
  return kNames[static_cast<size_t>(v)];
}

std::string GradcheckEntry::place() const {
  const std::string y = element("dy", out_index), x = element(fmt::format("dx{}", input), index);
  return (cotangent > 0 ? fmt::format("w{} ", cotangent) : "") + y + "/" + x + (direction > 0 ? fmt::format(" u{}", direction) : "");
}

GradcheckVerdict GradcheckReport::verdict() const {
  const auto broken = [](const GradcheckFinding& f) { return !f.ok; };
  if (!skipped.empty()) return GradcheckVerdict::skipped;
  if (!error.empty()) return GradcheckVerdict::error;
  // What two runs do not agree on says nothing about the rest.
  if (std::any_of(findings.begin(), findings.end(), [&](const GradcheckFinding& f) { return broken(f) && f.check.starts_with("repeats"); }))
    return GradcheckVerdict::nondeterministic;
  if (std::any_of(findings.begin(), findings.end(), broken)) return GradcheckVerdict::fail;
  const bool open = std::any_of(inputs.begin(), inputs.end(), [](const GradcheckInput& in) { return in.unverifiable > 0; });
  return open ? GradcheckVerdict::unverifiable : GradcheckVerdict::pass;
}

std::string GradcheckReport::text() const {
  std::string s = heading(*this), kept;
  if (!error.empty()) s += fmt::format("  ERROR the op threw: {}\n", error);
  if (!skipped.empty()) s += fmt::format("  skipped: {}\n", skipped);
  for (const GradcheckInput& in : inputs) s += about_input(*this, in);
  for (const GradcheckFinding& f : findings) {
    if (!f.ok)
      s += fmt::format("  FAIL  {} ({:.1e}): {}\n", f.check, f.value, f.detail);
    else
      kept += (kept.empty() ? "" : ", ") + f.check;
  }
  if (!kept.empty()) s += fmt::format("  ok    {}\n", kept);
  if (passed() && worst.scale > 0) s += fmt::format("  worst {}  {}\n", worst.place(), numbers(worst));
  if (resampled) s += fmt::format("  note  inputs were redrawn {} times: the differences could not judge the first ones\n", resampled);
  for (const std::string& n : notes) s += fmt::format("  note  {}\n", n);
  return s;
}

GradcheckReport gradcheck_bad_shapes(const OpDef& op) {
  GradcheckReport r{.op = op.name, .sample = op.samples().size(), .method = "shapes that must be refused"};
  for (const auto& shapes : op.bad_shapes()) {
    std::string message = "no error was thrown", list;
    Tape tape(DType::f64);
    std::vector<Tensor> values;
    std::vector<Var> vars;
    for (const Shape& s : shapes) {
      values.emplace_back(s, DType::f64);
      vars.push_back(tape.leaf(values.back()));
      list += s.str();
    }
    vars.resize(std::max(vars.size(), op.max_inputs));
    bool ok = false;
    try {
      tape.apply(op, vars, op.samples().front().attrs);
    } catch (const ShapeError& e) {
      message = e.what();
      ok = message.rfind(op.name, 0) == 0;
      for (const Shape& s : shapes) ok &= message.find(s.str()) != std::string::npos;
    }
    r.findings.push_back({"bad shapes " + list, ok, 0, ok ? "" : "must name the op and every shape: " + message});
  }
  return r;
}

}  // namespace sinkgrad
