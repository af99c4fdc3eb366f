// All three: z = (x - mean) r with r = 1 / sqrt(variance + epsilon), y = gain z + bias; dbias = sum dy, dgain = sum dy z.
// layer_norm:       dx = r (g - mean(g) - z mean(g z)) along a row, g = gain dy
// batch_norm_train: dx = gain r (dy - mean(dy) - z mean(dy z)) down a column
// batch_norm_eval:  dx = gain r dy
#include <algorithm>
#include <cmath>

#include "core/op.h"
#include "core/parallel.h"
#include "ops/cpu/vector.h"

namespace sinkgrad::cpu {
namespace {

/// (rows, columns): the last axis and all others.
struct Matrix {
  explicit Matrix(const Shape& s) : rows(s.count(0, s.rank() - 1)), columns(s[-1]) {}
  int64_t rows, columns;
};

/// total = the sum over rows of what row(r, sums) adds to `width` sums. Each chunk of rows has its own sums, and they are
/// added up in the order of the chunks. Chunks are short, so that f32 sums over many rows keep their digits.
template <class T, class Row>
void sum_rows(int64_t rows, int64_t width, T* total, Row row) {
  const int64_t grain = std::clamp<int64_t>(grain_for(width), 32, 256), chunks = (rows + grain - 1) / grain;
  ScratchScope scratch;
  T* partial = scratch.take<T>(chunks * width);
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    T* sums = partial + begin / grain * width;
    std::fill_n(sums, width, T(0));
    for (int64_t r = begin; r < end; ++r) row(r, sums);
  });
  std::fill_n(total, width, T(0));
  for (int64_t c = 0; c < chunks; ++c)
    for (int64_t j = 0; j < width; ++j) total[j] += partial[c * width + j];
}

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
    const T *gain = f.in[1].as<T>(), *bias = f.in[2].as<T>();
    const T epsilon = static_cast<T>(f.attrs.get("epsilon"));
    parallel_for(m.rows, grain_for(n * 6), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* x = f.in[0].as<T>() + r * n;
        T* y = f.out.as<T>() + r * n;
        for (int64_t j = 0; j < n; ++j) y[j] = x[j] - x[0];
        const T shift = vector_math<T>().sum(y, n) / static_cast<T>(n);
        for (int64_t j = 0; j < n; ++j) y[j] -= shift;
        const T inverse = T(1) / std::sqrt(vector_math<T>().dot(y, y, n) / static_cast<T>(n) + epsilon);
        for (int64_t j = 0; j < n; ++j) y[j] = y[j] * inverse * gain[j] + bias[j];
        f.saved[0].as<T>()[r] = shift;
        f.saved[1].as<T>()[r] = inverse;
      }
    });
  });
}

void layer_norm_backward(const Backward& b) {
  const Matrix m(b.out.shape);
  const int64_t n = m.columns;
  if (n == 0) return;
  dispatch(b.dtype(), [&]<class T>() {
    const T* gain = b.in[1].as<T>();
    ScratchScope scratch;
    T* sums = scratch.take<T>(2 * n);
    sum_rows(m.rows, 2 * n, sums, [&](int64_t r, T* s) {
      ScratchScope row_scratch;
      T *z = row_scratch.take<T>(n), *g = row_scratch.take<T>(n);
      const T *x = b.in[0].as<T>() + r * n, *dy = b.out_grad.as<T>() + r * n;
      const T shift = b.saved[0].as<T>()[r], inverse = b.saved[1].as<T>()[r];
      for (int64_t j = 0; j < n; ++j) z[j] = ((x[j] - x[0]) - shift) * inverse;
      for (int64_t j = 0; j < n; ++j) s[j] += dy[j] * z[j];
      for (int64_t j = 0; j < n; ++j) s[n + j] += dy[j];
      if (const Grad& grad = b.in_grad[0]) {
        for (int64_t j = 0; j < n; ++j) g[j] = gain[j] * dy[j];
        const T mean = vector_math<T>().sum(g, n) / static_cast<T>(n), mean_z = vector_math<T>().dot(g, z, n) / static_cast<T>(n);
        T* dx = grad.as<T>() + r * n;
        for (int64_t j = 0; j < n; ++j) put(dx[j], inverse * (g[j] - mean - z[j] * mean_z), grad.add);
      }
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
