// Sinkhorn attention forward and backward by another project: prints 0 when gradients have arrived and the plan's columns sum to 1.
#include <cmath>
#include <cstdio>

#include "core/version.h"
#include "ops/ops.h"

int main() {
  using namespace sinkgrad;
  const int64_t n = 12, d = 8;
  Tensor q({1, n, d}, DType::f64), k({1, n, d}, DType::f64), v({1, n, n}, DType::f64);
  RandomStream random(1, "consumer");
  for (double& x : q.span<double>()) x = random.normal();
  for (double& x : k.span<double>()) x = random.normal();
  for (int64_t i = 0; i < n; ++i) v.span<double>()[i * n + i] = 1;  // the output is then the plan

  Tape tape(DType::f64);
  const Var query = tape.variable(q), key = tape.variable(k);
  const Var plan = sinkhorn_attention(query, key, tape.leaf(v), 1, 1 / std::sqrt(double(d)), {.iterations = 200});
  const Var columns = sum(plan, {1});
  double off = 0;
  for (const double x : to_doubles(tape.value(columns))) off = std::max(off, std::abs(x - 1));
  tape.backward(sum(mul(plan, plan)));
  double gradient = 0;
  for (const double x : to_doubles(tape.grad(query))) gradient += x * x;
  std::printf("sinkgrad %s: columns off by %.1e, gradient %.3e\n", SINKGRAD_VERSION, off, std::sqrt(gradient));
  return off < 1e-10 && gradient > 0 && std::isfinite(gradient) ? 0 : 1;
}
