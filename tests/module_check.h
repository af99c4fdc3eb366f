// For tests of modules: random inputs, and whether backward is the derivative of forward in a random direction of all parameters.
#pragma once
#include <cmath>
#include <functional>
#include <span>
#include <string_view>

#include "nn/module.h"

namespace sinkgrad {

inline Tensor random_tensor(const Shape& shape, std::string_view name, DType dtype = DType::f32) {
  Tensor t(shape, dtype);
  RandomStream random(7, name);
  dispatch(dtype, [&]<class T>() {
    for (T& x : t.span<T>()) x = static_cast<T>(random.normal());
  });
  return t;
}

/// Relative difference between the directional derivative by central differences and by backward, in f64.
inline double gradient_error(Module& module, const std::function<Var(Tape&)>& forward) {
  ParameterPack pack(module, DType::f64, 1);
  Tape tape(DType::f64);
  Tensor cotangent, direction = random_tensor(pack.values().shape(), "direction", DType::f64);
  {
    const Var out = forward(tape);
    cotangent = random_tensor(out.shape(), "cotangent", DType::f64);
    tape.backward(out, cotangent);
    tape.reset();
  }
  const auto value = [&](double step) {
    for (const Parameter& p : module.parameters())
      for (int64_t i = 0; i < p.shape.count(); ++i) p.value.as<double>()[i] += step * pack.part(direction, p).as<double>()[i];
    const std::vector<double> y = to_doubles(tape.value(forward(tape)));
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += y[i] * cotangent.span<double>()[i];
    tape.reset();
    return sum;
  };
  constexpr double kStep = 1e-7;  // small, so that relu and max seldom change side
  const double above = value(kStep), below = value(-2 * kStep);
  double analytic = 0;
  for (int64_t i = 0; i < direction.count(); ++i)
    analytic += direction.span<double>()[static_cast<size_t>(i)] * pack.gradients().span<double>()[static_cast<size_t>(i)];
  const double numeric = (above - below) / (2 * kStep);
  return std::abs(numeric - analytic) / std::abs(numeric);
}

}  // namespace sinkgrad
