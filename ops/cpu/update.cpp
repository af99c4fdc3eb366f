// The routines of ops/update.h on the CPU. The update rules are written once with Highway; this file is compiled once per instruction set.
// Every chunk is a multiple of 16 elements, so no loop of the update has a remainder.
#include "ops/update.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"
#include "ops/cpu/vector.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/update.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#ifndef SINKGRAD_UPDATE_CONSTANTS
#define SINKGRAD_UPDATE_CONSTANTS
namespace sinkgrad {
/// What is constant over one update of one chunk.
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
void UpdateChunk(DType dtype, const UpdateConstants& c, const View& x, const View& g, const View& m, const View& v) {
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

HWY_EXPORT(UpdateChunk);

namespace cpu {

void update_values(const ValueUpdate& u) {
  const StepState s = *u.state;
  if (std::isnan(s.gradient_scale)) return;
  const UpdateConstants plain{.gradient_scale = s.gradient_scale,
                              .coupled_decay = 0,
                              .keep = 1,
                              .beta1 = u.beta1,
                              .beta2 = u.beta2,
                              .step = s.step,
                              .root_scale = s.root_scale,
                              .epsilon = u.epsilon};
  UpdateConstants decayed = plain;
  decayed.coupled_decay = u.coupled_decay;
  decayed.keep = s.keep;
  const auto update_chunk = HWY_DYNAMIC_DISPATCH(UpdateChunk);
  parallel_chunks(u.chunks.shape[0], [&](int64_t i) {
    const int64_t* chunk = u.chunks.as<int64_t>() + 3 * i;
    const auto part = [&](const View& flat) { return flat ? flat.rows(chunk[0], chunk[1]) : View{}; };
    update_chunk(u.values.dtype, chunk[2] ? decayed : plain, part(u.values), part(u.gradients), part(u.m), part(u.v));
  });
}

void measure_gradient(const GradientNorm& g) {
  constexpr int64_t chunk = 1024;  // a sum in f32 stays exact to six digits
  const int64_t count = g.gradients.shape.count(), chunks = (count + chunk - 1) / chunk;
  ScratchScope scratch;
  double* partial = scratch.take<double>(chunks);
  dispatch(g.gradients.dtype, [&]<class T>() {
    const T* x = g.gradients.as<T>();
    parallel_for(count, 16 * chunk, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i += chunk)
        partial[i / chunk] = static_cast<double>(vector_math<T>().dot(x + i, x + i, std::min(chunk, end - i)));
    });
  });
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += partial[c];
  StepState& s = *g.state;
  s.gradient_norm = std::sqrt(sum);
  const bool finite = std::isfinite(s.gradient_norm) && std::isfinite(s.loss);
  s.gradient_scale = finite ? clip_scale(s.gradient_norm, s.max_norm) : std::nan("");
}

void score_batch(const BatchScore& b) {
  StepState& s = *b.state;
  if (!b.add) s.loss = 0, s.correct = 0;
  dispatch(b.loss.dtype, [&]<class T>() {
    s.loss += b.weight * static_cast<double>(*b.loss.as<T>());
    const int64_t classes = b.logits.shape[1];
    const T* row = b.logits.as<T>();
    for (int64_t i = 0; i < b.labels.shape[0]; ++i, row += classes) {
      const int64_t label = b.labels.as<int32_t>()[i];
      bool largest = label >= 0 && label < classes && !std::isnan(row[label]);
      for (int64_t c = 0; c < classes && largest; ++c) largest = c == label || row[c] < row[label] || std::isnan(row[c]);
      s.correct += largest;
    }
  });
}

void update_running_statistics(const RunningStatistics& r) {
  const auto n = static_cast<double>(r.count);
  dispatch(r.mean.dtype, [&]<class T>() {
    const auto move = [&](const View& running, const View& batch, double factor) {
      for (int64_t c = 0; c < running.shape.count(); ++c) {
        T& x = running.as<T>()[c];
        x += static_cast<T>(r.momentum * (factor * static_cast<double>(batch.as<T>()[c]) - static_cast<double>(x)));
      }
    };
    move(r.mean, r.batch_mean, 1);
    move(r.variance, r.batch_variance, n / (n - 1));
  });
}

}  // namespace cpu
}  // namespace sinkgrad
#endif
