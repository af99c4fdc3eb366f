// Drawing inputs and running a case under hostile conditions: poisoned memory, guarded gradients, a second backward.
#include "core/gradcheck_case.h"

#include <algorithm>
#include <cstring>

namespace sinkgrad::detail {
namespace {

constexpr double kGuard = 12345.5;
constexpr int64_t kGuardSize = 17;

struct Poison {
  Poison() { set_memory_poison(true); }
  ~Poison() { set_memory_poison(false); }
};

}  // namespace

std::vector<Numbers> draw(const GradcheckCase& c, uint64_t seed) {
  RandomStream random(seed, c.stream);
  std::vector<Numbers> x;
  for (const SampleInput& in : c.inputs) {
    Numbers v = in.values;
    if (v.empty() && !in.absent)
      for (int64_t i = 0; i < in.shape.count(); ++i)
        v.push_back(in.integer ? in.low + static_cast<double>(random.below(static_cast<uint64_t>(in.high - in.low)))
                               : random.uniform(in.low, in.high));
    x.push_back(v);
  }
  return x;
}

Numbers draw_cotangent(const GradcheckCase& c, uint64_t seed, size_t count) {
  RandomStream random(seed, c.stream + "/cotangent");
  Numbers w(count);
  for (double& v : w) v = random.normal();
  return w;
}

Outcome run(const TapeFunction& f, const GradcheckCase& c, const std::vector<Numbers>& x, DType dtype, const Numbers* cotangent, Gradients mode,
            Device device) {
  Poison poison;
  Tape tape(dtype, device);
  std::vector<Tensor> values, guarded;
  std::vector<Numbers> before;
  std::vector<Var> vars;
  // An odd number of guards: everything that is guarded is misaligned, too.
  auto guard = [&](const Shape& shape, DType type, const Numbers& content) {
    Numbers all(content.size() + 2 * kGuardSize, kGuard);
    std::copy(content.begin(), content.end(), all.begin() + kGuardSize);
    return std::make_pair(tensor_of({static_cast<int64_t>(all.size())}, type, all).to(device), shape);
  };
  auto inside = [](const std::pair<Tensor, Shape>& g) { return g.first.view().rows(kGuardSize, kGuardSize + g.second.count()).reshaped(g.second); };
  for (size_t k = 0; k < x.size(); ++k) {
    const SampleInput& in = c.inputs[k];
    values.emplace_back();
    guarded.emplace_back();
    before.emplace_back();
    if (in.absent) {
      vars.emplace_back();
      continue;
    }
    const DType type = in.integer ? DType::i32 : dtype;
    const bool constant = in.integer || !in.differentiable || mode == Gradients::none;
    if (mode != Gradients::added) {
      values[k] = tensor_of(in.shape, type, x[k]).to(device);
      vars.push_back(constant ? tape.leaf(values[k]) : tape.variable(values[k]));
    } else {
      const auto value = guard(in.shape, type, x[k]);
      values[k] = value.first;
      if (constant) {
        vars.push_back(tape.leaf(inside(value)));
      } else {
        const auto gradient = guard(in.shape, dtype, Numbers(x[k].size(), kPrefill));
        guarded[k] = gradient.first;
        vars.push_back(tape.leaf(inside(value), inside(gradient)));
      }
    }
    before[k] = to_doubles(values[k].view(), device);
  }
  const Var y = f(tape, vars);
  Outcome o;
  o.out = to_doubles(tape.value(y), device);
  o.shape = y.shape();
  const Tensor w = cotangent ? tensor_of(y.shape(), dtype, *cotangent).to(device) : Tensor();
  if (cotangent && tape.requires_grad(y))  // added gradients twice: a backward that spoils what it reads differs the second time
    for (int pass = mode == Gradients::added ? 0 : 1; pass < 2; ++pass) tape.backward(y, w, {.retain = pass == 0});
  for (size_t k = 0; k < x.size(); ++k) {
    Numbers g;
    if (vars[k] && tape.requires_grad(vars[k])) {
      if (mode == Gradients::added) {
        const Numbers all = to_doubles(guarded[k].view(), device);
        g.assign(all.begin() + kGuardSize, all.end() - kGuardSize);
        for (int64_t i = 0; i < kGuardSize; ++i)
          o.guards_intact &= all[static_cast<size_t>(i)] == kGuard && all[all.size() - 1 - static_cast<size_t>(i)] == kGuard;
      } else if (const View v = tape.grad(vars[k])) {
        g = to_doubles(v, device);
      } else {
        g.assign(x[k].size(), 0);  // the output does not depend on this input
      }
    }
    o.grads.push_back(g);
    if (vars[k]) {
      const Numbers after = to_doubles(values[k].view(), device);
      o.inputs_unchanged &= after.empty() || !std::memcmp(after.data(), before[k].data(), after.size() * sizeof(double));
    }
  }
  return o;
}

GradcheckCase case_of(const OpDef& op, size_t sample) {
  const auto samples = op.samples();
  require(sample < samples.size(), op.name, ": has ", samples.size(), " samples, asked for number ", sample);
  const Sample& s = samples[sample];
  GradcheckCase c{.name = op.name,
                  .inputs = s.inputs,
                  .attrs = s.attrs,
                  .zero_gradient = s.zero_gradient,
                  .true_gradient = op.true_gradient(s.attrs),
                  .tolerance = s.tolerance,
                  .stream = cat(op.name, "/", sample)};
  c.function = [&op, attrs = s.attrs](Tape& t, std::span<const Var> in) { return t.apply(op, in, attrs); };
  if (op.reference) c.reference = [&op, attrs = s.attrs](Tape& t, std::span<const Var> in) { return op.reference(t, in, attrs); };
  require(c.true_gradient || c.reference, op.name, ": a backward that is not the derivative needs a reference that defines it");
  return c;
}

GradcheckReport report_of(const GradcheckCase& c, const GradcheckOptions& options) {
  GradcheckReport r{.op = c.name,
                    .seed = options.seed,
                    .attrs = {c.attrs.items().begin(), c.attrs.items().end()},
                    .tolerance = options.tolerance > 0 ? options.tolerance : c.tolerance,
                    .budget = options.budget};
  for (size_t k = 0; k < c.inputs.size(); ++k)
    if (const SampleInput& in = c.inputs[k]; !in.absent)
      r.inputs.push_back({.number = k, .shape = in.shape, .dtype = in.integer ? DType::i32 : DType::f64, .requires_grad = c.requires_grad(k)});
  return r;
}

}  // namespace sinkgrad::detail
