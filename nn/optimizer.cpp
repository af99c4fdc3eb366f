// The update rules are written once with Highway; this file is compiled once per instruction set.
// Every chunk is a multiple of 16 elements (see ParameterPack), so no loop has a remainder.
#include "nn/optimizer.h"

#include <cmath>

#include "core/parallel.h"
#include "ops/cpu/vector.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "nn/optimizer.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#ifndef SINKGRAD_OPTIMIZER_CONSTANTS
#define SINKGRAD_OPTIMIZER_CONSTANTS
namespace sinkgrad {
/// What is constant over one update.
struct UpdateConstants {
  double gradient_scale;  ///< of every gradient, before all else
  double coupled_decay;   ///< times x joins the gradient
  double keep;            ///< 1 - lr weight_decay, the factor of decoupled decay
  double beta1, beta2;    ///< sgd: beta1 is the momentum
  double step;            ///< factor of the direction
  double root_scale;      ///< of sqrt(v), before epsilon is added
  double epsilon;
};
}  // namespace sinkgrad
#endif

HWY_BEFORE_NAMESPACE();
namespace sinkgrad {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
void SgdUpdate(const UpdateConstants& c, T* x, const T* g, T* m, int64_t n) {
  const hn::CappedTag<T, 16> d;
  auto set = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<T>(value)); };
  const auto scale = set(c.gradient_scale), decay = set(c.coupled_decay), momentum = set(c.beta1), step = set(c.step);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto xi = hn::Load(d, x + i);
    auto direction = hn::MulAdd(decay, xi, hn::Mul(scale, hn::Load(d, g + i)));
    if (m) {
      direction = hn::MulAdd(momentum, hn::Load(d, m + i), direction);
      hn::Store(direction, d, m + i);
    }
    hn::Store(hn::NegMulAdd(step, direction, xi), d, x + i);
  }
}

template <class T>
void AdamUpdate(const UpdateConstants& c, T* x, const T* g, T* m, T* v, int64_t n) {
  const hn::CappedTag<T, 16> d;
  auto set = [&](double value) HWY_ATTR { return hn::Set(d, static_cast<T>(value)); };
  const auto scale = set(c.gradient_scale), decay = set(c.coupled_decay), keep = set(c.keep), step = set(c.step), epsilon = set(c.epsilon);
  const auto beta1 = set(c.beta1), rest1 = set(1 - c.beta1), beta2 = set(c.beta2), rest2 = set(1 - c.beta2), root_scale = set(c.root_scale);
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(hn::Lanes(d))) {
    const auto xi = hn::Load(d, x + i);
    const auto gi = hn::MulAdd(decay, xi, hn::Mul(scale, hn::Load(d, g + i)));
    const auto mi = hn::MulAdd(beta1, hn::Load(d, m + i), hn::Mul(rest1, gi));
    const auto vi = hn::MulAdd(beta2, hn::Load(d, v + i), hn::Mul(rest2, hn::Mul(gi, gi)));
    hn::Store(mi, d, m + i);
    hn::Store(vi, d, v + i);
    const auto direction = hn::Div(mi, hn::MulAdd(root_scale, hn::Sqrt(vi), epsilon));
    hn::Store(hn::NegMulAdd(step, direction, hn::Mul(keep, xi)), d, x + i);
  }
}

/// m and v may be null where the rule does without.
void Update(DType dtype, const UpdateConstants& c, const View& x, const View& g, const View& m, const View& v) {
  const int64_t n = x.shape.count();
  dispatch(dtype, [&]<class T>() {
    if (v)
      AdamUpdate(c, x.as<T>(), g.as<T>(), m.as<T>(), v.as<T>(), n);
    else
      SgdUpdate(c, x.as<T>(), g.as<T>(), m.as<T>(), n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinkgrad
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinkgrad {
namespace {

HWY_EXPORT(Update);
using Kind = OptimizerOptions::Kind;

constexpr int64_t kChunk = 16384;     // elements: worth a thread
constexpr int64_t kNormChunk = 1024;  // elements: a sum in f32 stays exact to six digits

View part(const Tensor& flat, const ParameterPack::Range& range) { return flat ? flat.view().rows(range.begin, range.end) : View{}; }

}  // namespace

Optimizer::Optimizer(const ParameterPack& pack, const OptimizerOptions& options) : pack_(&pack), options_(options) {
  auto check = [](bool ok, const char* name, const char* range, double value) {
    require(ok, "optimizer: ", name, " must be ", range, ", got ", value);
  };
  for (const double beta : {options.beta1, options.beta2}) check(beta >= 0 && beta < 1, "beta", "in [0, 1)", beta);
  check(options.momentum >= 0 && options.momentum < 1, "momentum", "in [0, 1)", options.momentum);
  check(options.weight_decay >= 0, "weight_decay", "at least 0", options.weight_decay);
  check(options.epsilon > 0 || options.kind == Kind::sgd, "epsilon", "above 0", options.epsilon);  // 0 / 0 where no gradient arrives

  const bool adam = options.kind != Kind::sgd;
  if (adam || options.momentum > 0) m_ = Tensor(pack.values().shape(), pack.dtype());
  if (adam) v_ = Tensor(pack.values().shape(), pack.dtype());
  for (const ParameterPack::Range& r : pack.ranges())
    for (int64_t begin = r.begin; begin < r.end; begin += kChunk)
      chunks_.push_back({begin, std::min(begin + kChunk, r.end), r.decay || options.decay_all});
}

void Optimizer::step(double lr, double gradient_scale) {
  ++updates_;
  const bool sgd = options_.kind == Kind::sgd, fairseq = options_.form == OptimizerOptions::Form::fairseq;
  const double decay = options_.weight_decay;
  const bool decoupled = options_.kind == Kind::adamw;
  const auto t = static_cast<double>(updates_);
  const double correction1 = 1 - std::pow(options_.beta1, t), root2 = std::sqrt(1 - std::pow(options_.beta2, t));
  UpdateConstants plain{.gradient_scale = gradient_scale,
                        .coupled_decay = 0,
                        .keep = 1,
                        .beta1 = sgd ? options_.momentum : options_.beta1,
                        .beta2 = options_.beta2,
                        .step = sgd       ? lr
                                : fairseq ? lr * root2 / correction1
                                          : lr / correction1,
                        .root_scale = fairseq ? 1 : 1 / root2,
                        .epsilon = options_.epsilon};
  UpdateConstants decayed = plain;
  decayed.coupled_decay = decoupled ? 0 : decay;
  decayed.keep = decoupled ? 1 - lr * decay : 1;

  const auto update = HWY_DYNAMIC_DISPATCH(Update);
  parallel_chunks(static_cast<int64_t>(chunks_.size()), [&](int64_t i) {
    const ParameterPack::Range& r = chunks_[static_cast<size_t>(i)];
    update(pack_->dtype(), r.decay ? decayed : plain, part(pack_->values(), r), part(pack_->gradients(), r), part(m_, r), part(v_, r));
  });
}

std::vector<Optimizer::State> Optimizer::state() const {
  std::vector<State> state;
  if (m_) state.push_back({"m", m_});
  if (v_) state.push_back({"v", v_});
  return state;
}

std::vector<std::string> Optimizer::decayed() const {
  std::vector<std::string> names;
  if (options_.weight_decay == 0) return names;
  for (const Parameter& p : pack_->module().parameters())
    if (p.decay || options_.decay_all) names.push_back(p.name);
  return names;
}

double gradient_norm(const ParameterPack& pack) {
  const Tensor& gradients = pack.gradients();
  const int64_t count = gradients.count(), chunks = (count + kNormChunk - 1) / kNormChunk;
  ScratchScope scratch;
  double* partial = scratch.take<double>(chunks);
  dispatch(pack.dtype(), [&]<class T>() {
    const T* g = gradients.view().as<T>();
    parallel_for(count, 16 * kNormChunk, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += kNormChunk)
        partial[i / kNormChunk] = static_cast<double>(cpu::vector_math<T>().dot(g + i, g + i, std::min(kNormChunk, end - i)));
    });
  });
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += partial[c];
  return std::sqrt(sum);
}

}  // namespace sinkgrad
#endif
