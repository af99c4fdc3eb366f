// The same random weights serve every number of half-steps, so that curves of one seed differ by the normalisation alone.
#include "tools/theory/rank_decay.h"

#include <cmath>

#include "core/rng.h"
#include "ops/ops.h"
#include "tools/theory/particles.h"

namespace sinkgrad {
namespace {

Tensor normal(uint64_t seed, const std::string& name, uint64_t layer, int64_t rows, int64_t columns, double deviation) {
  RandomStream random(seed, name, layer);
  Tensor x({rows, columns}, DType::f64);
  for (double& value : x.span<double>()) value = deviation * random.normal();
  return x;
}

/// P(X) X W_V
Tensor attend(const Tensor& tokens, uint64_t seed, uint64_t layer, int half_steps, double sharpness) {
  const int64_t width = tokens.shape()[1];
  const double deviation = 1 / std::sqrt(static_cast<double>(width));
  const auto weight = [&](const char* name) { return normal(seed, name, layer, width, width, deviation); };
  const Tensor query = weight("theory/query"), key = weight("theory/key"), value = weight("theory/value");
  Tape tape(DType::f64);
  tape.set_recording(false);
  const Var x = tape.leaf(tokens), q = matmul(x, tape.leaf(query)), k = matmul(x, tape.leaf(key));
  const Var plan = sinkhorn(scale_shift(matmul(q, k, false, true), sharpness * deviation, 0), {.iterations = half_steps});
  return copy_of(matmul(plan, matmul(x, tape.leaf(value))));
}

double norm(Var x) { return std::sqrt(sum(mul(x, x)).span<double>()[0]); }

double residual_of(const Tensor& tokens) {
  Tape tape(DType::f64);
  tape.set_recording(false);
  const Var x = tape.leaf(tokens);
  return norm(sub(x, mean(x, {0}, true))) / norm(x);
}

double effective_rank_of(const Tensor& tokens) {
  Tape tape(DType::f64);
  tape.set_recording(false);
  const Var x = tape.leaf(tokens);
  return std::pow(norm(x) * norm(x) / norm(matmul(x, x, false, true)), 2);
}

}  // namespace

RankDecay measure_rank_decay(uint64_t seed, int half_steps, int layers, int64_t tokens, int64_t width, double sharpness) {
  RankDecay decay{.half_steps = half_steps};
  Tensor x = normal(seed, "theory/tokens", 0, tokens, width, 1);
  for (int layer = 0;; ++layer) {
    decay.residual.push_back(residual_of(x));
    decay.effective_rank.push_back(effective_rank_of(x));
    if (layer == layers) return decay;
    x = attend(x, seed, static_cast<uint64_t>(layer), half_steps, sharpness);
  }
}

double contraction_order(uint64_t seed, int half_steps, int64_t tokens, int64_t width) {
  const Tensor common = normal(seed, "theory/common", 0, 1, width, 1), own = normal(seed, "theory/tokens", 0, tokens, width, 1);
  double before[2], after[2];
  for (int k = 0; k < 2; ++k) {
    Tensor x({tokens, width}, DType::f64);
    for (size_t i = 0; i < x.span<double>().size(); ++i)
      x.span<double>()[i] = common.span<double>()[i % static_cast<size_t>(width)] + (k == 0 ? 1e-2 : 1e-3) * own.span<double>()[i];
    before[k] = residual_of(x);
    after[k] = residual_of(attend(x, seed, 0, half_steps, 1));
  }
  return std::log(after[0] / after[1]) / std::log(before[0] / before[1]);
}

}  // namespace sinkgrad
