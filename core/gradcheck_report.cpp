// What a gradient check says to a person, and the check of an op's declared bad shapes.
#include <fmt/format.h>

#include <algorithm>

#include "core/gradcheck.h"

namespace sinkgrad {
namespace {

std::string heading(const GradcheckReport& r) {
  std::string s = r.op;
  for (const Attr& a : r.attrs) s += fmt::format(" {}={}", a.name, a.value);
  s += "  inputs";
  for (const Shape& shape : r.shapes) s += fmt::format(" {}", shape.str());
  return s + fmt::format("  sample {}  seed {}  {}\n", r.sample, r.seed, r.passed() ? "PASS" : "FAIL");
}

std::string worst_entry(const GradcheckReport& r) {
  const GradcheckEntry& w = r.worst;
  std::string index;
  for (int64_t i : w.index) index += fmt::format("{}{}", index.empty() ? "" : ",", i);
  return fmt::format("  {} of {} entries wrong, worst at input {} index ({})\n", r.bad_entries, r.total_entries, w.input, index) +
         fmt::format("    analytic {:.6e}  numeric {:.6e} +- {:.0e}  error {:.1e} of the largest entry, tolerance {:.0e}\n", w.analytic, w.numeric,
                     w.error_bar, w.error, r.tolerance);
}

}  // namespace

bool GradcheckReport::passed() const {
  return std::all_of(findings.begin(), findings.end(), [](const GradcheckFinding& f) { return f.ok; });
}

std::string GradcheckReport::text() const {
  std::string s = heading(*this), kept;
  if (total_entries) s += worst_entry(*this);
  for (const GradcheckFinding& f : findings) {
    if (!f.ok)
      s += fmt::format("  FAIL  {} ({:.1e}): {}\n", f.check, f.value, f.detail);
    else
      kept += (kept.empty() ? "" : ", ") + f.check;
  }
  if (!kept.empty()) s += fmt::format("  ok    {}\n", kept);
  if (resampled) s += fmt::format("  note  inputs were redrawn {} times, because a kink lay within the difference step\n", resampled);
  for (const std::string& n : notes) s += fmt::format("  note  {}\n", n);
  return s;
}

GradcheckReport gradcheck_bad_shapes(const OpDef& op) {
  GradcheckReport r{.op = op.name, .sample = op.samples().size()};
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
