// Lists of doubles: what the gradient check and its self-test compute with, in whatever dtype the kernels ran.
// Every comparison is written so that NaN is the worst.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/tensor.h"

namespace sinkgrad {

using Numbers = std::vector<double>;

/// The inverse of to_doubles.
inline Tensor tensor_of(const Shape& shape, DType dtype, const Numbers& values) {
  Tensor t(shape, dtype);
  auto fill = [&]<class T>(T) { std::transform(values.begin(), values.end(), t.span<T>().begin(), [](double v) { return static_cast<T>(v); }); };
  if (dtype == DType::i32)
    fill(int32_t{});
  else if (dtype == DType::f32)
    fill(float{});
  else
    fill(double{});
  return t;
}

/// Whether `a` beats the worst seen so far; a NaN beats every number and is never beaten.
inline bool worse(double a, double worst) { return !std::isnan(worst) && !(a <= worst); }

inline double largest(const Numbers& v) {
  double m = 0;
  for (double a : v)
    if (worse(std::abs(a), m)) m = std::abs(a);
  return m;
}

inline double largest(const std::vector<Numbers>& vs) {
  double m = 0;
  for (const Numbers& v : vs)
    if (const double a = largest(v); worse(a, m)) m = a;
  return m;
}

/// The largest |a - b| over the largest |b|, over all entries; infinite entries must be equal.
inline double distance(const std::vector<Numbers>& a, const std::vector<Numbers>& b) {
  double worst = 0, scale = 1e-30;
  for (size_t k = 0; k < b.size(); ++k)
    for (size_t i = 0; i < b[k].size(); ++i) {
      if (std::isfinite(b[k][i])) scale = std::max(scale, std::abs(b[k][i]));
      const double e = a[k][i] == b[k][i] ? 0 : std::abs(a[k][i] - b[k][i]);
      if (worse(e, worst)) worst = e;
    }
  return worst / scale;
}

/// The index, one number per dimension, of element `flat`.
inline std::vector<int64_t> unflatten(const Shape& s, size_t flat) {
  std::vector<int64_t> index(static_cast<size_t>(s.rank()));
  auto rest = static_cast<int64_t>(flat);
  for (int i = s.rank() - 1; i >= 0; --i) {
    index[static_cast<size_t>(i)] = rest % s[i];
    rest /= s[i];
  }
  return index;
}

}  // namespace sinkgrad
