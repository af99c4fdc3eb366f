// The gradient of Sinkhorn at its fixed point: one symmetric linear system instead of undoing half-steps.
//   [diag a  P; P^T  diag b] [alpha; beta] = [r; c],  r = (P o D) 1, c = (P o D)^T 1,  D <- P o (D - alpha 1^T - 1 beta^T)
// with the actual marginals a = P 1, b = P^T 1. alpha is eliminated; beta comes from conjugate gradients, preconditioned by b.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "ops/cpu/vector.h"

namespace sinkgrad::cpu {

/// Replaces d (n, m) = dL/dP by dL/d(scores) and returns the relative residual of the solve.
template <class T>
T implicit_backward(int64_t n, int64_t m, const T* p, T* d, ScratchScope& scratch) {
  const VectorMath<T>& v = vector_math<T>();
  T *a = scratch.take<T>(n), *r = scratch.take<T>(n), *u = scratch.take<T>(n), *alpha = scratch.take<T>(n);
  T *b = scratch.take<T>(m), *c = scratch.take<T>(m), *beta = scratch.take<T>(m), *rest = scratch.take<T>(m), *z = scratch.take<T>(m),
    *q = scratch.take<T>(m), *direction = scratch.take<T>(m);
  for (T* column : {b, c, beta}) std::fill_n(column, m, T(0));
  for (int64_t i = 0; i < n; ++i) {
    const T *pi = p + i * m, *di = d + i * m;
    a[i] = v.sum(pi, m);
    r[i] = v.dot(pi, di, m);
    v.axpy(T(1), pi, b, m);
    for (int64_t j = 0; j < m; ++j) c[j] += pi[j] * di[j];
  }
  auto divide = [](T x, T y) { return y > 0 ? x / y : T(0); };  // excluded rows and columns have marginal 0
  // out = b o x - P^T ((P x) / a)
  auto schur = [&](const T* x, T* out) {
    for (int64_t i = 0; i < n; ++i) u[i] = divide(v.dot(p + i * m, x, m), a[i]);
    for (int64_t j = 0; j < m; ++j) out[j] = b[j] * x[j];
    for (int64_t i = 0; i < n; ++i) v.axpy(-u[i], p + i * m, out, m);
  };

  std::copy_n(c, m, rest);
  for (int64_t i = 0; i < n; ++i) v.axpy(-divide(r[i], a[i]), p + i * m, rest, m);
  auto precondition = [&] {
    for (int64_t j = 0; j < m; ++j) z[j] = divide(rest[j], b[j]);
  };
  auto inner = [&](const T* x, const T* y) {
    double s = 0;
    for (int64_t j = 0; j < m; ++j) s += double(x[j]) * double(y[j]);
    return s;
  };
  const double scale = std::sqrt(std::max(inner(c, c), std::numeric_limits<double>::min()));
  const double goal = (sizeof(T) == 4 ? 1e-7 : 1e-15) * scale;
  precondition();
  std::copy_n(z, m, direction);
  double rho = inner(rest, z);
  for (int64_t k = 0; k < 4 * std::min(n, m) + 20 && std::sqrt(inner(rest, rest)) > goal && rho > 0; ++k) {
    schur(direction, q);
    const double curvature = inner(direction, q);
    if (!(curvature > 0)) break;  // rounding has reached the null space of constants
    const T step = static_cast<T>(rho / curvature);
    v.axpy(step, direction, beta, m);
    v.axpy(-step, q, rest, m);
    precondition();
    const double next = inner(rest, z);
    const T keep = static_cast<T>(next / rho);
    for (int64_t j = 0; j < m; ++j) direction[j] = z[j] + keep * direction[j];
    rho = next;
  }
  for (int64_t i = 0; i < n; ++i) {
    alpha[i] = divide(r[i] - v.dot(p + i * m, beta, m), a[i]);
    for (int64_t j = 0; j < m; ++j) d[i * m + j] = p[i * m + j] * (d[i * m + j] - alpha[i] - beta[j]);
  }
  return static_cast<T>(std::sqrt(inner(rest, rest)) / scale);
}

}  // namespace sinkgrad::cpu
