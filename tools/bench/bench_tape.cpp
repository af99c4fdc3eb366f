// What the tape costs: a chain of small ops (16 floats), forward and backward, in nanoseconds per op.
#include <benchmark/benchmark.h>

#include "ops/ops.h"

using namespace sinkgrad;

/// h <- h * w + x, `range` times: two ops a link.
static void small_op_chain(benchmark::State& state) {
  const auto links = state.range(0);
  Tape tape;
  Tensor x({16}), w({16}), dx({16}), dw({16}), cotangent({16});
  for (const Tensor* t : {&x, &w, &cotangent})
    for (float& v : t->span<float>()) v = 0.5f;
  for (auto _ : state) {
    tape.reset();
    const Var vx = tape.leaf(x, dx), vw = tape.leaf(w, dw);
    Var h = vx;
    for (int64_t k = 0; k < links; ++k) h = add(mul(h, vw), vx);
    tape.backward(h, cotangent);
    benchmark::DoNotOptimize(dx.view().data);
  }
  state.counters["ns_per_op"] =
      benchmark::Counter(static_cast<double>(2 * links), benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.SetItemsProcessed(state.iterations() * 2 * links);
}
BENCHMARK(small_op_chain)->Arg(100)->Arg(1000);

/// One attention forward and backward: (batch * heads, n), head size 64, half-steps.
static void sinkhorn_attention_step(benchmark::State& state) {
  const auto heads = state.range(0), n = state.range(1);
  const SinkhornOptions options{.iterations = static_cast<int>(state.range(2))};
  Tape tape;
  Tensor q({heads, n, 64}), cotangent({heads, n, 64});
  RandomStream random(1, "bench");
  for (const Tensor* t : {&q, &cotangent})
    for (float& v : t->span<float>()) v = static_cast<float>(random.normal());
  for (auto _ : state) {
    tape.reset();
    const Var v = tape.variable(q);
    tape.backward(sinkhorn_attention(v, v, v, 1, 0.125, options), cotangent);
  }
  state.SetItemsProcessed(state.iterations() * heads * n * n);
}
BENCHMARK(sinkhorn_attention_step)->ArgsProduct({{64}, {64, 256}, {1, 3, 21}})->Unit(benchmark::kMillisecond);
