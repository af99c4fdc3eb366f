// What one Sinkhorn attention keeps for its backward, and what the process holds at most: attention_memory MATRICES N HALF_STEPS prints
// {"kept": bytes on the tape after the forward, "peak": bytes that the process grew by}. q, k, v: (MATRICES, N, 64) f32.
#include <sys/resource.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "ops/ops.h"

using namespace sinkgrad;

namespace {

constexpr int64_t kHeadSize = 64;

Tensor random_tensor(int64_t matrices, int64_t n, uint64_t seed) {
  Tensor t({matrices, n, kHeadSize}, DType::f32);
  RandomStream random(seed, "attention_memory");
  for (float& x : t.span<float>()) x = static_cast<float>(random.normal());
  return t;
}

/// Bytes of the largest resident set so far.
double peak_resident() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: attention_memory MATRICES N HALF_STEPS\n");
    return 2;
  }
  const int64_t matrices = std::atoll(argv[1]), n = std::atoll(argv[2]);
  const double before = peak_resident();
  const Tensor q = random_tensor(matrices, n, 1), k = random_tensor(matrices, n, 2), v = random_tensor(matrices, n, 3);
  Tape tape(DType::f32);
  const Var out = sinkhorn_attention(tape.variable(q), tape.variable(k), tape.variable(v), 1, 1 / std::sqrt(double{kHeadSize}),
                                     {.iterations = std::atoi(argv[3])});
  const double kept = static_cast<double>(tape.memory().active_bytes()) + 3.0 * static_cast<double>(q.shape().count()) * sizeof(float);
  tape.backward(out, v);
  std::printf("{\"kept\": %.0f, \"peak\": %.0f}\n", kept, peak_resident() - before);
}
