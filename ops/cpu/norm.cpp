// All three: z = (x - mean) r with r = 1 / sqrt(variance + epsilon), y = gain z + bias; dbias = sum dy, dgain = sum dy z.
// layer_norm:       dx = r (g - mean(g) - z mean(g z)) along a row, g = gain dy
// batch_norm_train: dx = gain r (dy - mean(dy) - z mean(dy z)) down a column
// batch_norm_eval:  dx = gain r dy
// Layer norm is written with Highway; this file is compiled once per instruction set.
#include <algorithm>
#include <cmath>

#include "core/op.h"
#include "core/parallel.h"
#include "ops/cpu/sum_rows.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/norm.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "ops/cpu/rows-inl.h"

#ifndef SINKGRAD_NORM_LINES
#define SINKGRAD_NORM_LINES
namespace sinkgrad::cpu {

/// Layer norm of one row of n elements: z = ((x - x_0) - shift) inverse. Taking the first element out first keeps the digits of rows far
/// from 0.
template <class T>
struct LayerNormRow {
  void (*forward)(const T* x, const T* gain, const T* bias, T epsilon, T* y, T& shift, T& inverse, int64_t n);
  /// Adds dy z and dy to sums (2, n) and, unless dx is null, stores or adds the gradient of x.
  void (*backward)(const T* x, const T* gain, const T* dy, T shift, T inverse, T* sums, T* dx, bool add, int64_t n);
};

}  // namespace sinkgrad::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu {
namespace HWY_NAMESPACE {

template <class T>
void ForwardRow(const T* x, const T* gain, const T* bias, T epsilon, T* y, T& shift, T& inverse, int64_t n) {
  const Rows<T> r;
  const auto first = hn::Set(r.d, x[0]);
  shift = r.reduce(
              n, [&](auto xj) HWY_ATTR { return hn::Sub(xj, first); }, x) /
          static_cast<T>(n);
  const auto mean = hn::Set(r.d, shift);
  const T square = r.reduce(
      n,
      [&](auto xj) HWY_ATTR {
        const auto centred = hn::Sub(hn::Sub(xj, first), mean);
        return hn::Mul(centred, centred);
      },
      x);
  inverse = T(1) / std::sqrt(square / static_cast<T>(n) + epsilon);
  const auto scale = hn::Set(r.d, inverse);
  r.map(
      n, y, [&](auto xj, auto gj, auto bj) HWY_ATTR { return hn::MulAdd(hn::Mul(hn::Sub(hn::Sub(xj, first), mean), scale), gj, bj); }, x, gain, bias);
}

template <class T>
void BackwardRow(const T* x, const T* gain, const T* dy, T shift, T inverse, T* sums, T* dx, bool add, int64_t n) {
  const Rows<T> r;
  const auto first = hn::Set(r.d, x[0]), mean = hn::Set(r.d, shift), scale = hn::Set(r.d, inverse);
  const auto z = [&](auto xj) HWY_ATTR { return hn::Mul(hn::Sub(hn::Sub(xj, first), mean), scale); };
  auto total = hn::Zero(r.d), total_z = hn::Zero(r.d);
  const auto reduce = [&](auto xj, auto gj, auto dj, auto& sum_z, auto& sum) HWY_ATTR {
    const auto zj = z(xj), g = hn::Mul(gj, dj);
    sum_z = hn::MulAdd(dj, zj, sum_z);
    sum = hn::Add(sum, dj);
    total = hn::Add(total, g);  // dy is 0 beyond the end
    total_z = hn::MulAdd(g, zj, total_z);
  };
  r.each(
      n,
      [&](int64_t j) HWY_ATTR {
        auto sum_z = r.load(sums + j), sum = r.load(sums + n + j);
        reduce(r.load(x + j), r.load(gain + j), r.load(dy + j), sum_z, sum);
        r.store(sum_z, sums + j);
        r.store(sum, sums + n + j);
      },
      [&](int64_t j, size_t c) HWY_ATTR {
        auto sum_z = r.load(sums + j, c), sum = r.load(sums + n + j, c);
        reduce(r.load(x + j, c), r.load(gain + j, c), r.load(dy + j, c), sum_z, sum);
        r.store(sum_z, sums + j, c);
        r.store(sum, sums + n + j, c);
      });
  if (!dx) return;
  const auto mean_g = hn::Set(r.d, r.total(total) / static_cast<T>(n)), mean_z = hn::Set(r.d, r.total(total_z) / static_cast<T>(n));
  const auto slope = [&](auto xj, auto gj, auto dj)
                         HWY_ATTR { return hn::Mul(scale, hn::NegMulAdd(z(xj), mean_z, hn::Sub(hn::Mul(gj, dj), mean_g))); };
  if (add)
    r.map(
        n, dx, [&](auto xj, auto gj, auto dj, auto old) HWY_ATTR { return hn::Add(old, slope(xj, gj, dj)); }, x, gain, dy, static_cast<const T*>(dx));
  else
    r.map(n, dx, slope, x, gain, dy);
}

LayerNormRow<float> RowF32() { return {ForwardRow<float>, BackwardRow<float>}; }
LayerNormRow<double> RowF64() { return {ForwardRow<double>, BackwardRow<double>}; }

}  // namespace HWY_NAMESPACE
}  // namespace sinkgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinkgrad::cpu {
HWY_EXPORT(RowF32);
HWY_EXPORT(RowF64);

namespace {

template <class T>
LayerNormRow<T> layer_norm_row() {
  if constexpr (sizeof(T) == 4)
    return HWY_DYNAMIC_DISPATCH(RowF32)();
  else
    return HWY_DYNAMIC_DISPATCH(RowF64)();
}

/// (rows, columns): the last axis and all others.
struct Matrix {
  explicit Matrix(const Shape& s) : rows(s.count(0, s.rank() - 1)), columns(s[-1]) {}
  int64_t rows, columns;
};

/// Stores or adds the gradients of gain and bias, which lie in `sums` one after the other.
template <class T>
void put_gain_and_bias(const Backward& b, int64_t n, const T* sums) {
  for (size_t k = 1; k <= 2; ++k, sums += n)
    if (const Grad& g = b.in_grad[k])
      for (int64_t j = 0; j < n; ++j) put(g.as<T>()[j], sums[j], g.add);
}

/// How batch norm maps a column: z = ((x - origin) - shift) r. For statistics of the batch the origin is its first row.
template <class T>
struct Columns {
  const T *origin, *shift, *inverse;
  T z(T x, int64_t j) const { return ((x - origin[j]) - shift[j]) * inverse[j]; }
};

template <class T>
const T* inverse_deviation(const T* variance, int64_t n, double epsilon, ScratchScope& scratch) {
  T* inverse = scratch.take<T>(n);
  for (int64_t j = 0; j < n; ++j) inverse[j] = T(1) / std::sqrt(variance[j] + static_cast<T>(epsilon));
  return inverse;
}

template <class T>
Columns<T> batch_columns(std::span<const View> in, std::span<const View> saved, const Attrs& attrs, ScratchScope& scratch) {
  return {in[0].as<T>(), saved[2].as<T>(), inverse_deviation(saved[1].as<T>(), in[0].shape[-1], attrs.get("epsilon"), scratch)};
}

template <class T>
Columns<T> given_columns(std::span<const View> in, const Attrs& attrs, ScratchScope& scratch) {
  const int64_t n = in[0].shape[-1];
  T* zero = scratch.take<T>(n);
  std::fill_n(zero, n, T(0));
  return {in[3].as<T>(), zero, inverse_deviation(in[4].as<T>(), n, attrs.get("epsilon"), scratch)};
}

template <class T>
void normalise_columns(const Forward& f, const Columns<T>& columns) {
  const Matrix m(f.out.shape);
  const T *gain = f.in[1].as<T>(), *bias = f.in[2].as<T>();
  parallel_for(m.rows, grain_for(m.columns * 4), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = f.in[0].as<T>() + r * m.columns;
      T* y = f.out.as<T>() + r * m.columns;
      for (int64_t j = 0; j < m.columns; ++j) y[j] = columns.z(x[j], j) * gain[j] + bias[j];
    }
  });
}

/// Gradients of gain and bias, then of x; only statistics of the batch depend on x.
template <class T>
void normalise_columns_backward(const Backward& b, const Columns<T>& columns, bool of_batch) {
  const Matrix m(b.out.shape);
  const int64_t n = m.columns;
  const T *x = b.in[0].as<T>(), *dy = b.out_grad.as<T>();
  ScratchScope scratch;
  T* sums = scratch.take<T>(2 * n);
  sum_rows(m.rows, 2 * n, sums, [&](int64_t r, T* s) {
    for (int64_t j = 0; j < n; ++j) s[j] += dy[r * n + j] * columns.z(x[r * n + j], j);
    for (int64_t j = 0; j < n; ++j) s[n + j] += dy[r * n + j];
  });
  if (const Grad& dx = b.in_grad[0]) {
    T *scale = scratch.take<T>(n), *mean_z = scratch.take<T>(n), *mean = scratch.take<T>(n);
    for (int64_t j = 0; j < n; ++j) {
      scale[j] = b.in[1].as<T>()[j] * columns.inverse[j];
      mean_z[j] = of_batch ? sums[j] / static_cast<T>(m.rows) : T(0);
      mean[j] = of_batch ? sums[n + j] / static_cast<T>(m.rows) : T(0);
    }
    parallel_for(m.rows, grain_for(n * 4), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * n; i < end * n; i += n)
        for (int64_t j = 0; j < n; ++j) put(dx.as<T>()[i + j], scale[j] * (dy[i + j] - mean[j] - columns.z(x[i + j], j) * mean_z[j]), dx.add);
    });
  }
  put_gain_and_bias(b, n, sums);
}

}  // namespace

void layer_norm_forward(const Forward& f) {
  const Matrix m(f.out.shape);
  const int64_t n = m.columns;
  if (n == 0) return;
  dispatch(f.dtype(), [&]<class T>() {
    const auto row = layer_norm_row<T>();
    const T epsilon = static_cast<T>(f.attrs.get("epsilon"));
    parallel_for(m.rows, grain_for(n * 2), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        row.forward(f.in[0].as<T>() + r * n, f.in[1].as<T>(), f.in[2].as<T>(), epsilon, f.out.as<T>() + r * n, f.saved[0].as<T>()[r],
                    f.saved[1].as<T>()[r], n);
    });
  });
}

void layer_norm_backward(const Backward& b) {
  const Matrix m(b.out.shape);
  const int64_t n = m.columns;
  if (n == 0) return;
  dispatch(b.dtype(), [&]<class T>() {
    const auto row = layer_norm_row<T>();
    const Grad& dx = b.in_grad[0];
    ScratchScope scratch;
    T* sums = scratch.take<T>(2 * n);
    sum_rows(m.rows, 2 * n, sums, [&](int64_t r, T* s) {
      row.backward(b.in[0].as<T>() + r * n, b.in[1].as<T>(), b.out_grad.as<T>() + r * n, b.saved[0].as<T>()[r], b.saved[1].as<T>()[r], s,
                   dx ? dx.as<T>() + r * n : nullptr, dx.add, n);
    });
    put_gain_and_bias(b, n, sums);
  });
}

void batch_norm_train_forward(const Forward& f) {
  const Matrix m(f.out.shape);
  const int64_t n = m.columns;
  dispatch(f.dtype(), [&]<class T>() {
    const T* x = f.in[0].as<T>();
    T *mean = f.saved[0].as<T>(), *variance = f.saved[1].as<T>(), *shift = f.saved[2].as<T>();
    sum_rows(m.rows, n, shift, [&](int64_t r, T* s) {
      for (int64_t j = 0; j < n; ++j) s[j] += x[r * n + j] - x[j];
    });
    for (int64_t j = 0; j < n; ++j) {
      shift[j] /= static_cast<T>(m.rows);
      mean[j] = x[j] + shift[j];
    }
    sum_rows(m.rows, n, variance, [&](int64_t r, T* s) {
      for (int64_t j = 0; j < n; ++j) {
        const T centred = (x[r * n + j] - x[j]) - shift[j];
        s[j] += centred * centred;
      }
    });
    for (int64_t j = 0; j < n; ++j) variance[j] /= static_cast<T>(m.rows);
    ScratchScope scratch;
    normalise_columns(f, batch_columns<T>(f.in, f.saved, f.attrs, scratch));
  });
}

void batch_norm_train_backward(const Backward& b) {
  dispatch(b.dtype(), [&]<class T>() {
    ScratchScope scratch;
    normalise_columns_backward(b, batch_columns<T>(b.in, b.saved, b.attrs, scratch), true);
  });
}

void batch_norm_eval_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    ScratchScope scratch;
    normalise_columns(f, given_columns<T>(f.in, f.attrs, scratch));
  });
}

void batch_norm_eval_backward(const Backward& b) {
  dispatch(b.dtype(), [&]<class T>() {
    ScratchScope scratch;
    normalise_columns_backward(b, given_columns<T>(b.in, b.attrs, scratch), false);
  });
}

}  // namespace sinkgrad::cpu
#endif
