// Each output is looked at once, so the record that makes the first bad value is the culprit, unless a leaf was bad already.
#include "nn/finite_check.h"

#include <algorithm>
#include <cmath>

#include "core/numbers.h"
#include "nn/record_place.h"
#include "nn/trainer.h"

namespace sinkgrad {
namespace {

template <class T>
bool all_finite(const T* x, int64_t count) {
  constexpr int64_t kBlock = 4096;  // no branch inside, so that it is vectorised
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    int bad = 0;
    for (int64_t i = begin; i < std::min(count, begin + kBlock); ++i) bad |= !(std::abs(x[i]) <= std::numeric_limits<T>::max());
    if (bad) return false;
  }
  return true;
}

bool all_finite(const View& v, Device device) {
  if (device.kind() != DeviceKind::cpu) {
    const Numbers x = to_doubles(v, device);
    return all_finite(x.data(), static_cast<int64_t>(x.size()));
  }
  return v.dtype == DType::f32   ? all_finite(v.as<float>(), v.shape.count())
         : v.dtype == DType::f64 ? all_finite(v.as<double>(), v.shape.count())
                                 : true;
}

/// "nan at (0,3)": the first bad value of a view that holds one.
std::string first_bad(const View& v, Device device) {
  const Numbers x = to_doubles(v, device);
  const auto at = static_cast<size_t>(std::find_if(x.begin(), x.end(), [](double value) { return !std::isfinite(value); }) - x.begin());
  return cat(std::isnan(x[at]) ? "nan" : x[at] > 0 ? "inf" : "-inf", " at ", Shape(unflatten(v.shape, at)));
}

bool is_sinkhorn(const Record& r) { return std::string_view(r.op->name).starts_with("sinkhorn"); }

/// The first potential of a Sinkhorn call that is not finite, in the order of half-steps; empty when all are. See ops/sinkhorn_common.h for what
/// the call keeps: potentials (matrices, steps, lines) of row and column steps, and statistics that begin with the half-steps taken.
std::string first_bad_half_step(const Tape& tape, const Record& r) {
  const std::span<const View> saved = tape.saved(r);
  const Device device = tape.device();
  if (all_finite(saved[0], device) && all_finite(saved[1], device)) return "";
  const Numbers potentials[] = {to_doubles(saved[0], device), to_doubles(saved[1], device)}, stats = to_doubles(saved[2], device);
  const Attrs attrs = tape.attrs(r);
  const auto heads = static_cast<int64_t>(attrs.get("heads", 1));
  for (int64_t step = 0; step < attrs.integer("iterations"); ++step) {
    const Shape& s = saved[static_cast<size_t>(step % 2)].shape;
    for (int64_t matrix = 0; matrix < s[0]; ++matrix) {
      if (static_cast<double>(step) >= stats[static_cast<size_t>(matrix * stats.size() / s[0])]) continue;  // the rest is not written
      for (int64_t line = 0; line < s[2]; ++line) {
        const double value = potentials[step % 2][static_cast<size_t>((matrix * s[1] + step / 2) * s[2] + line)];
        if (!std::isfinite(value))
          return cat("half-step ", step + 1, step % 2 ? " (columns)" : " (rows)", " makes a potential ", std::isnan(value) ? "nan" : "infinite",
                     " at item ", matrix / heads, ", head ", matrix % heads, step % 2 ? ", key " : ", query ", line);
      }
    }
  }
  return "";
}

/// "(8,50,64) in -3.2..4.1, ...": shapes and ranges of what a record read.
std::string inputs(const Tape& tape, const Record& r) {
  std::string text;
  for (uint32_t id : tape.inputs(r)) {
    if (id == Tape::kAbsent) continue;
    const Numbers x = to_doubles(tape.value(id), tape.device());
    text += cat(text.empty() ? "" : ", ", tape.value(id).shape);
    if (x.empty()) continue;
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    text += all_finite(x.data(), static_cast<int64_t>(x.size())) ? cat(" in ", *low, "..", *high) : " not finite";
  }
  return text;
}

std::string name(const Tape& tape, const Record& r, Module& module) {
  const RecordPlace place = place_of(tape, r, module);
  const char* relation = place.module.empty() ? "before any parameter" : place.own ? "in module " : "after module ";
  return cat("'", r.op->name, "' (record ", &r - tape.records().data(), ", ", relation, place.module, ")");
}

/// What is wrong with the output or the potentials of a record; empty when nothing is.
std::string bad_output(const Tape& tape, const Record& r, Module& module) {
  const std::string half_step = is_sinkhorn(r) ? first_bad_half_step(tape, r) : "";
  const View& out = tape.value(r.output);
  if (half_step.empty() && all_finite(out, tape.device())) return "";
  for (uint32_t id : tape.inputs(r)) {
    if (id == Tape::kAbsent || maker_of(tape, tape.source(id)) || all_finite(tape.value(id), tape.device())) continue;
    const Parameter* p = parameter_at(module, tape.value(id).data);
    return cat(p ? "the parameter " + p->name : "an input of " + name(tape, r, module), " ", tape.value(id).shape, " is ",
               first_bad(tape.value(id), tape.device()));
  }
  const std::string what = half_step.empty() ? cat("the output ", out.shape, " is ", first_bad(out, tape.device())) : half_step;
  return cat(name(tape, r, module), ": ", what, "; its inputs are ", inputs(tape, r));
}

[[noreturn]] void fail(const Tape& tape, const std::string& what) {
  throw DivergedError(cat("not finite at update ", tape.random().step + 1, ": ", what));
}

}  // namespace

void FiniteCheck::after_forward(const Tape& tape, const Record& record) {
  if (const std::string bad = bad_output(tape, record, *module_); !bad.empty()) fail(tape, bad);
}

void FiniteCheck::after_backward(const Tape& tape, const Record& record, std::span<const Grad> in_grad) {
  for (size_t k = 0; k < in_grad.size(); ++k)
    if (in_grad[k] && !all_finite(in_grad[k].view, tape.device()))
      fail(tape, cat(name(tape, record, *module_), ": the gradient of input ", k, " ", in_grad[k].view.shape, " is ",
                     first_bad(in_grad[k].view, tape.device()), "; its inputs are ", inputs(tape, record)));
}

std::string first_nonfinite_value(const Tape& tape, Module& module) {
  const Device device = tape.device();
  for (const Parameter& p : module.parameters())
    if (!all_finite(p.value, device)) return cat("the parameter ", p.name, " ", p.shape, " is ", first_bad(p.value, device));
  for (const Record& r : tape.records())
    if (const std::string bad = bad_output(tape, r, module); !bad.empty()) return bad;
  return "";
}

std::string first_nonfinite_gradient(Module& module, Device device) {
  for (const Parameter& p : module.parameters())
    if (!all_finite(p.grad, device)) return cat("the gradient of ", p.name, " ", p.shape, " is ", first_bad(p.grad, device));
  return "";
}

}  // namespace sinkgrad
