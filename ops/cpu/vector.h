// Vectorised row primitives, compiled for several instruction sets by Highway and chosen at run time.
// Sums run in vector lanes: the order is fixed for one machine, so results repeat to the bit.
#pragma once
#include <cstdint>

namespace sinkgrad::cpu {

/// exp flushes results below the smallest normal number to 0, gives +inf on overflow and passes NaN on; error under 2 ulp.
template <class T>
struct VectorMath {
  T (*sum)(const T* x, int64_t n);
  T (*dot)(const T* x, const T* y, int64_t n);
  /// max_j x_j; -inf for n = 0.
  T (*max)(const T* x, int64_t n);
  /// max_j (x_j + y_j).
  T (*max_sum)(const T* x, const T* y, int64_t n);
  /// m_j = max(m_j, x_j + a).
  void (*max_into)(const T* x, T a, T* m, int64_t n);
  /// y_j += a x_j.
  void (*axpy)(T a, const T* x, T* y, int64_t n);
  /// y_j = exp(x_j).
  void (*exp)(const T* x, T* y, int64_t n);
  /// y_j = exp(x_j + a); returns the sum.
  T (*exp_shift)(const T* x, T a, T* y, int64_t n);
  /// sum_j exp(x_j + y_j + a).
  T (*sum_exp)(const T* x, const T* y, T a, int64_t n);
  /// s_j += exp(x_j + y_j + a).
  void (*sum_exp_into)(const T* x, const T* y, T a, T* s, int64_t n);
  /// p_j = exp(x_j + y_j + a); returns the sum. p may be x.
  T (*exp_into)(const T* x, const T* y, T a, T* p, int64_t n);
  /// d_j = p_j (d_j - a); s_j += d_j.
  void (*center_into)(const T* p, T a, T* d, T* s, int64_t n);
  /// w_j = scale exp(x_j + y_j + a); d_j -= w_j; s_j -= w_j.
  void (*subtract_row_step)(const T* x, const T* y, T a, T scale, T* d, T* s, int64_t n);
  /// w_j = c_j exp(x_j + y_j + a); d_j -= w_j; returns sum_j w_j.
  T (*subtract_column_step)(const T* x, const T* y, T a, const T* c, T* d, int64_t n);
};

template <class T>
const VectorMath<T>& vector_math();

}  // namespace sinkgrad::cpu
