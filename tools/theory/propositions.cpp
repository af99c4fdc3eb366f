// Every number comes from our ops in float64; Jacobians and energy gradients are the tape's.
#include "tools/theory/propositions.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/rng.h"

namespace sinkgrad {
namespace {

std::vector<double> plan_after(const Tensor& scores, int half_steps) {
  Tape tape(DType::f64);
  tape.set_recording(false);
  return to_doubles(tape.value(sinkhorn(tape.leaf(scores), {.iterations = half_steps})));
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

/// The square of the second singular value of a doubly stochastic (n, n) matrix, by power iteration beside its first vector, 1.
double second_singular_value_squared(const std::vector<double>& plan, size_t n) {
  std::vector<double> x(n), y(n);
  for (size_t j = 0; j < n; ++j) x[j] = std::sin(1.0 + static_cast<double>(j));
  double square = 0;
  for (int iteration = 0; iteration < 2000; ++iteration) {
    double average = 0, norm = 0;
    for (double value : x) average += value / static_cast<double>(n);
    for (double& value : x) {
      value -= average;
      norm += value * value;
    }
    for (double& value : x) value /= std::sqrt(norm);
    square = 0;
    for (size_t i = 0; i < n; ++i) {
      y[i] = 0;
      for (size_t j = 0; j < n; ++j) y[i] += plan[i * n + j] * x[j];
      square += y[i] * y[i];
    }
    std::fill(x.begin(), x.end(), 0);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) x[j] += plan[i * n + j] * y[i];
  }
  return square;
}

/// What is watched along a flow: the energy of the field, or Sinkhorn's beside the flow of softmax.
double energy_of(const Tensor& points, const Tensor& interaction, Normalisation normalisation) {
  Tape tape(DType::f64);
  tape.set_recording(false);
  const Normalisation energy = normalisation == Normalisation::softmax ? Normalisation::sinkhorn : normalisation;
  return attention_energy(tape.leaf(points), tape.leaf(interaction), energy).span<double>()[0];
}

std::vector<double> field_of(const Tensor& points, const Tensor& interaction, Normalisation normalisation) {
  Tape tape(DType::f64);
  tape.set_recording(false);
  return to_doubles(tape.value(attention_field(tape.leaf(points), tape.leaf(interaction), normalisation)));
}

double gradient_gap(const Tensor& points, const Tensor& interaction, Normalisation normalisation) {
  if (normalisation == Normalisation::softmax) return std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> field = field_of(points, interaction, normalisation);
  Tape tape(DType::f64);
  const Var x = tape.variable(points);
  tape.backward(attention_energy(x, tape.leaf(interaction), normalisation));
  std::vector<double> descent = to_doubles(tape.grad(x));
  double largest = 0;
  for (size_t i = 0; i < field.size(); ++i) {
    descent[i] *= -static_cast<double>(points.shape()[0]);
    largest = std::max(largest, std::abs(field[i]));
  }
  return largest_difference(field, descent) / largest;
}

}  // namespace

Tensor random_points(uint64_t seed, int64_t n, int64_t d, double spread) {
  RandomStream random(seed, "theory/points");
  Tensor points({n, d}, DType::f64);
  for (double& x : points.span<double>()) x = spread * random.normal();
  return points;
}

Tensor random_interaction(uint64_t seed, int64_t d) {
  RandomStream random(seed, "theory/interaction");
  const auto size = static_cast<size_t>(d);
  std::vector<double> a(size * size), m(size * size, 0);
  for (double& x : a) x = random.normal();
  double trace = 0;
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < size; ++j)
      for (size_t k = 0; k < size; ++k) m[i * size + j] += a[i * size + k] * a[j * size + k] / static_cast<double>(d);
    m[i * size + i] += 0.25;
    trace += m[i * size + i];
  }
  for (double& x : m) x *= static_cast<double>(d) / trace;
  return matrix(d, d, m);
}

Invariance measure_invariance(uint64_t seed, int64_t n) {
  RandomStream random(seed, "theory/invariance");
  const auto size = static_cast<size_t>(n);
  std::vector<double> q(2 * size), k(2 * size), f(size), g(size), scores(size * size), shifted(size * size), distances(size * size);
  for (auto* list : {&q, &k})
    for (double& x : *list) x = 1.2 * random.normal();
  for (auto* list : {&f, &g})
    for (double& x : *list) x = 2 * random.normal();
  for (size_t i = 0; i < size; ++i)
    for (size_t j = 0; j < size; ++j) {
      const double a = q[2 * i] - k[2 * j], b = q[2 * i + 1] - k[2 * j + 1];
      scores[i * size + j] = q[2 * i] * k[2 * j] + q[2 * i + 1] * k[2 * j + 1];
      shifted[i * size + j] = scores[i * size + j] + f[i] + g[j];
      distances[i * size + j] = -(a * a + b * b) / 2;
    }
  const Tensor plain = matrix(n, n, scores), moved = matrix(n, n, shifted), distance = matrix(n, n, distances);
  Invariance result;
  for (int l : {1, 3, 5, 9, 15, 21, 31, 41, 61, 81, 121, 161, 241}) {
    result.limit = plan_after(plain, l);
    result.limit_shifted = plan_after(moved, l);
    if (l == 1) {
      result.softmax = result.limit;
      result.softmax_shifted = result.limit_shifted;
    }
    result.half_steps.push_back(l);
    result.difference.push_back(largest_difference(result.limit, result.limit_shifted));
    result.distance_difference.push_back(largest_difference(result.limit, plan_after(distance, l)));
  }
  result.rate = second_singular_value_squared(result.limit, size);
  return result;
}

ParticleFlow run_flow(const Tensor& points, const Tensor& interaction, Normalisation normalisation, int steps, double step_size) {
  ParticleFlow flow{.gradient_gap = gradient_gap(points, interaction, normalisation)};
  const Tensor x = points.clone();
  for (int step = 0;; ++step) {
    flow.positions.emplace_back(x.span<double>().begin(), x.span<double>().end());
    flow.energy.push_back(energy_of(x, interaction, normalisation));
    if (step > 0) flow.largest_rise = std::max(flow.largest_rise, flow.energy.back() - flow.energy[flow.energy.size() - 2]);
    if (step == steps) return flow;
    const std::vector<double> field = field_of(x, interaction, normalisation);
    for (size_t i = 0; i < field.size(); ++i) x.span<double>()[i] += step_size * field[i];
  }
}

FieldJacobian field_jacobian(const Tensor& points, const Tensor& interaction, Normalisation normalisation) {
  const auto size = static_cast<size_t>(points.count());
  FieldJacobian result;
  Tape tape(DType::f64);
  for (size_t row = 0; row < size; ++row) {
    tape.reset();
    const Var x = tape.variable(points), field = attention_field(x, tape.leaf(interaction), normalisation);
    Tensor cotangent(points.shape(), DType::f64);
    cotangent.span<double>()[row] = 1;
    tape.backward(field, cotangent);
    const std::vector<double> gradient = to_doubles(tape.grad(x));
    result.values.insert(result.values.end(), gradient.begin(), gradient.end());
  }
  double skew = 0, norm = 0;
  for (size_t i = 0; i < size; ++i)
    for (size_t j = 0; j < size; ++j) {
      const double entry = result.values[i * size + j];
      skew += (entry - result.values[j * size + i]) * (entry - result.values[j * size + i]);
      norm += entry * entry;
    }
  result.asymmetry = std::sqrt(skew / norm);
  return result;
}

}  // namespace sinkgrad
