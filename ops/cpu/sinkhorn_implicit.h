// The gradient of Sinkhorn at its fixed point: one symmetric linear system instead of undoing half-steps.
//   [diag a  P; P^T  diag b] [alpha; beta] = [r; c],  r = (P o D) 1, c = (P o D)^T 1,  D <- P o (D - alpha 1^T - 1 beta^T)
// with the actual marginals a = P 1, b = P^T 1. alpha is eliminated; beta comes from conjugate gradients, preconditioned by b.
// The system is singular along constants, where rounding would grow without bound: it is always solved in f64.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "ops/cpu/vector.h"

namespace sinkgrad::cpu {

/// Replaces d (n, m) = dL/dP by dL/d(scores) and returns the relative residual of the solve.
template <class T>
T implicit_backward(int64_t n, int64_t m, const T* plan, T* d, ScratchScope& scratch) {
  const VectorMath<double>& v = vector_math<double>();
  auto take = [&](int64_t count) { return scratch.take<double>(count); };
  double *p = take(n * m), *a = take(n), *r = take(n), *u = take(n), *b = take(m), *c = take(m), *beta = take(m), *rest = take(m), *z = take(m),
         *q = take(m), *direction = take(m);
  std::copy_n(plan, n * m, p);
  for (double* columns : {b, c, beta}) std::fill_n(columns, m, 0.0);
  for (int64_t i = 0; i < n; ++i) {
    a[i] = v.sum(p + i * m, m);
    r[i] = 0;
    v.axpy(1, p + i * m, b, m);
    for (int64_t j = 0; j < m; ++j) {
      const double weighted = p[i * m + j] * static_cast<double>(d[i * m + j]);
      r[i] += weighted;
      c[j] += weighted;
    }
  }
  auto divide = [](double x, double y) { return y > 0 ? x / y : 0.0; };  // excluded rows and columns have marginal 0
  // out = b o x - P^T ((P x) / a)
  auto schur = [&](const double* x, double* out) {
    for (int64_t j = 0; j < m; ++j) out[j] = b[j] * x[j];
    for (int64_t i = 0; i < n; ++i) u[i] = divide(v.dot(p + i * m, x, m), a[i]);
    for (int64_t i = 0; i < n; ++i) v.axpy(-u[i], p + i * m, out, m);
  };
  auto precondition = [&] {
    for (int64_t j = 0; j < m; ++j) z[j] = divide(rest[j], b[j]);
  };

  std::copy_n(c, m, rest);
  for (int64_t i = 0; i < n; ++i) v.axpy(-divide(r[i], a[i]), p + i * m, rest, m);
  const double scale = std::sqrt(std::max(v.dot(c, c, m), std::numeric_limits<double>::min()));
  const double goal = (sizeof(T) == 4 ? 1e-9 : 1e-15) * scale;
  precondition();
  std::copy_n(z, m, direction);
  double rho = v.dot(rest, z, m);
  for (int64_t k = 0; k < 4 * std::min(n, m) + 20 && std::sqrt(v.dot(rest, rest, m)) > goal; ++k) {
    schur(direction, q);
    double weight = 0;
    for (int64_t j = 0; j < m; ++j) weight += b[j] * direction[j] * direction[j];
    const double curvature = v.dot(direction, q, m);
    if (!(curvature > 1e-12 * weight)) break;  // only the constants are left in the direction
    v.axpy(rho / curvature, direction, beta, m);
    v.axpy(-rho / curvature, q, rest, m);
    precondition();
    const double next = v.dot(rest, z, m);
    for (int64_t j = 0; j < m; ++j) direction[j] = z[j] + next / rho * direction[j];
    rho = next;
  }
  for (int64_t i = 0; i < n; ++i) {
    const double alpha = divide(r[i] - v.dot(p + i * m, beta, m), a[i]);
    for (int64_t j = 0; j < m; ++j) d[i * m + j] = static_cast<T>(p[i * m + j] * (static_cast<double>(d[i * m + j]) - alpha - beta[j]));
  }
  return static_cast<T>(std::sqrt(v.dot(rest, rest, m)) / scale);
}

}  // namespace sinkgrad::cpu
