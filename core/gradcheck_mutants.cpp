// The self-test of the gradient check: known errors are put into a backward, and each must be caught.
// A mutant runs the true kernel into memory of its own, spoils what came out, and delivers that.
#include <algorithm>
#include <cmath>

#include "core/gradcheck.h"
#include "core/numbers.h"

namespace sinkgrad {
namespace {

constexpr int64_t kMutantBudget = 300;

/// One call of a spoiled backward: what the true kernel gave, and how it will be delivered.
struct Call {
  const Backward& b;
  BackwardKernel* kernel;
  size_t input;  ///< the one that a mutant of a single input spoils
  int number;    ///< of calls before this one
  Numbers cotangent;
  std::vector<Numbers> gradients = {};  ///< by input; empty where none is wanted
  std::vector<bool> add = {}, skip_first = {};
  bool acted = false;  ///< did something that the delivered gradients do not show

  const Shape& shape(size_t k) const { return b.in[k].shape; }
  std::vector<Numbers> gradients_for(const Numbers& w) const;
};

void assign(const View& to, size_t i, double value) {
  dispatch(to.dtype, [&]<class T>() { to.as<T>()[i] = static_cast<T>(value); });
}

std::vector<Numbers> Call::gradients_for(const Numbers& w) const {
  const Tensor out_grad = tensor_of(b.out.shape, b.dtype(), w);
  std::vector<Tensor> memory;
  std::vector<Grad> grads;
  for (const Grad& g : b.in_grad) {
    memory.push_back(g ? Tensor(g.view.shape, g.view.dtype) : Tensor());
    grads.push_back({memory.back().view()});
  }
  kernel({b.in, b.out, b.saved, out_grad.view(), grads, b.attrs, b.random});
  std::vector<Numbers> result;
  for (const Tensor& t : memory) result.push_back(t ? to_doubles(t.view()) : Numbers{});
  return result;
}

void scale(Call& c, double factor) {
  for (Numbers& g : c.gradients)
    for (double& v : g) v *= factor;
}

/// Reads every matrix of the last two axes as if it were stored the other way round.
void transpose(Call& c) {
  for (size_t k = 0; k < c.gradients.size(); ++k) {
    const Numbers g = c.gradients[k];
    if (g.empty() || c.shape(k).rank() < 2) continue;
    const auto n = static_cast<size_t>(c.shape(k)[-2]), m = static_cast<size_t>(c.shape(k)[-1]);
    for (size_t i = 0; i < g.size(); ++i) c.gradients[k][i] = g[i / (n * m) * n * m + i % m * n + i / m % n];
  }
}

void spoil_entry(Call& c) {
  Numbers& g = c.gradients[c.input];
  if (!g.empty()) g[g.size() / 2] += 0.01 * largest(g);
}

/// Keeps, of the Jacobian, only the blocks that couple `group` neighbouring elements: softmax without its inner product (1), Sinkhorn
/// without its column steps (a row).
void decouple(Call& c, int64_t group_size) {
  const auto group = static_cast<size_t>(group_size), count = c.cotangent.size();
  if (group == 0) return;
  for (size_t begin = 0; begin < count; begin += group) {
    Numbers w(count);
    std::copy_n(c.cotangent.begin() + static_cast<int64_t>(begin), group, w.begin() + static_cast<int64_t>(begin));
    const auto part = c.gradients_for(w);
    for (size_t k = 0; k < part.size(); ++k)
      if (!part[k].empty() && c.shape(k) == c.b.out.shape) std::copy_n(&part[k][begin], group, &c.gradients[k][begin]);
  }
}

/// Sees the outputs of index 0 along an axis only.
void forget_axis(Call& c, int axis) {
  const Shape& s = c.b.out.shape;
  if (s.rank() == 0) return;
  if (axis < 0) axis += s.rank();
  const int64_t stride = s.count(axis + 1, s.rank());
  Numbers w = c.cotangent;
  for (size_t i = 0; i < w.size(); ++i)
    if (static_cast<int64_t>(i) / stride % s[axis] != 0) w[i] = 0;
  c.gradients = c.gradients_for(w);
}

struct Mutation {
  const char* name;
  void (*spoil)(Call&);
  bool per_input = false;
};

const Mutation kMutations[] = {
    {"scaled by 1.01", [](Call& c) { scale(c, 1.01); }},
    {"sign flipped", [](Call& c) { scale(c, -1); }},
    {"transposed", transpose},
    {"one wrong entry", spoil_entry, true},
    {"detached", [](Call& c) { std::fill(c.gradients[c.input].begin(), c.gradients[c.input].end(), 0); }, true},
    {"first entry unwritten", [](Call& c) { c.skip_first[c.input] = true; }, true},
    {"coupling of elements missing", [](Call& c) { decouple(c, 1); }},
    {"coupling of rows missing", [](Call& c) { decouple(c, c.b.out.shape.rank() ? c.b.out.shape[-1] : 1); }},
    {"last quarter of the outputs missing",
     [](Call& c) {
       Numbers w = c.cotangent;
       std::fill(w.begin() + static_cast<int64_t>(w.size() - (w.size() + 3) / 4), w.end(), 0);
       c.gradients = c.gradients_for(w);
     }},
    {"mean of the cotangent missing",
     [](Call& c) {
       double mean = 0;
       for (double v : c.cotangent) mean += v / static_cast<double>(c.cotangent.size());
       Numbers w = c.cotangent;
       for (double& v : w) v -= mean;
       c.gradients = c.gradients_for(w);
     }},
    {"sum over the first axis forgotten", [](Call& c) { forget_axis(c, 0); }},
    {"sum over the last axis forgotten", [](Call& c) { forget_axis(c, -1); }},
    {"cotangent ignored", [](Call& c) { c.gradients = c.gradients_for(Numbers(c.cotangent.size(), 1)); }},
    {"large cotangents clipped",
     [](Call& c) {
       Numbers w = c.cotangent;
       for (double& v : w) v = std::clamp(v, -8.0, 8.0);
       if (w != c.cotangent) c.gradients = c.gradients_for(w);
     }},
    {"leaks at a zero cotangent",
     [](Call& c) {
       for (Numbers& g : c.gradients)
         for (double& v : g) v += 1e-14, c.acted = true;
     }},
    {"never adds", [](Call& c) { std::fill(c.add.begin(), c.add.end(), false); }},
    {"always adds", [](Call& c) { std::fill(c.add.begin(), c.add.end(), true); }},
    {"overwrites the sum of a repeated input",
     [](Call& c) {
       for (size_t k = 1; k < c.add.size(); ++k)
         if (c.b.in_grad[k] && c.b.in_grad[k].view.data == c.b.in_grad[k - 1].view.data) c.add[k] = false;
     }},
    {"differs from run to run",
     [](Call& c) {
       scale(c, 1 + c.number * 0x1p-50);
       c.acted = std::any_of(c.gradients.begin(), c.gradients.end(), [](const Numbers& g) { return largest(g) > 1e-4; });
     }},
    {"eight bits in f32",
     [](Call& c) {
       if (c.b.dtype() != DType::f32) return;
       for (Numbers& g : c.gradients)
         for (double& v : g) {
           int exponent = 0;
           const double mantissa = std::frexp(v, &exponent);
           v = std::ldexp(std::floor(mantissa * 256) / 256, exponent);
         }
     }},
    {"writes into an input",
     [](Call& c) {
       for (const View& v : c.b.in)
         if (v && is_float(v.dtype) && v.shape.count() > 0 && !c.acted) {
           assign(v, 0, 7.25);
           c.acted = true;
         }
     }},
    {"writes behind the end",
     [](Call& c) {
       for (const Grad& g : c.b.in_grad)
         if (g) {
           assign(g.view, static_cast<size_t>(g.view.shape.count()), 7.25);
           c.acted = true;
         }
     }},
};

struct Active {
  BackwardKernel* kernel;
  const Mutation* mutation;
  size_t input;
  int calls = 0;
  bool changed = false;
};

// A kernel is a plain function, so what it shall spoil waits here.
thread_local Active* g_active = nullptr;

void spoiled_backward(const Backward& b) {
  Active& active = *g_active;
  Call c{.b = b, .kernel = active.kernel, .input = active.input, .number = active.calls++, .cotangent = to_doubles(b.out_grad)};
  if (c.input >= b.in.size()) c.input = 0;
  c.gradients = c.gradients_for(c.cotangent);
  for (const Grad& g : b.in_grad) c.add.push_back(g.add);
  c.skip_first.assign(b.in_grad.size(), false);

  const auto right = c.gradients;
  active.mutation->spoil(c);
  const double scale_of_all = std::max(1e-4, largest(right));  // below 1e-4 a gradient counts as zero, see "not vacuous" in the check
  active.changed |= c.acted;
  for (size_t k = 0; k < b.in_grad.size(); ++k) {
    const View& to = b.in_grad[k].view;
    const Numbers before = to ? to_doubles(to) : Numbers{};
    for (size_t i = c.skip_first[k]; i < right[k].size(); ++i) assign(to, i, c.add[k] ? before[i] + c.gradients[k][i] : c.gradients[k][i]);
    const Numbers after = to ? to_doubles(to) : Numbers{};
    for (size_t i = 0; i < right[k].size(); ++i) {
      const double expected = b.in_grad[k].add ? before[i] + right[k][i] : right[k][i];
      active.changed |= !(std::abs(after[i] - expected) <= 1e-5 * scale_of_all);
    }
  }
}

bool has_gradient(const std::vector<Sample>& samples, size_t input) {
  return std::any_of(samples.begin(), samples.end(), [&](const Sample& s) {
    return input < s.inputs.size() && !s.inputs[input].absent && !s.inputs[input].integer && s.inputs[input].differentiable;
  });
}

}  // namespace

std::vector<GradcheckMutant> gradcheck_mutants(const OpDef& op, const GradcheckOptions& options) {
  // Random cotangents and directions must do here, of samples that a check would compare in full.
  GradcheckOptions fast = options;
  fast.budget = std::min(options.budget, kMutantBudget);
  OpDef spoiled = op;
  spoiled.cpu.backward = spoiled_backward;
  const auto samples = op.samples();
  std::vector<GradcheckMutant> result;
  for (const Mutation& m : kMutations)
    for (size_t input = 0; input < (m.per_input ? op.max_inputs : 1); ++input) {
      if (m.per_input && !has_gradient(samples, input)) continue;
      GradcheckMutant mutant{op.name, m.per_input ? cat("input ", input, " ", m.name) : m.name};
      for (size_t s = 0; s < samples.size() && !mutant.caught; ++s) {
        Active active{op.cpu.backward, &m, input};
        g_active = &active;
        const bool failed = is_failure(gradcheck(spoiled, s, fast).verdict());
        mutant.applicable |= active.changed;
        mutant.caught |= active.changed && failed;
      }
      result.push_back(mutant);
    }
  g_active = nullptr;
  return result;
}

}  // namespace sinkgrad
