// What is drawn from the words of a stream: uniform and normal numbers, indices, permutations.
#include "core/rng.h"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace sinkgrad {

double RandomStream::uniform() {
  const uint64_t high = next_u32(), low = next_u32();
  return static_cast<double>((high << 32 | low) >> 11) * 0x1p-53;
}

double RandomStream::normal() {
  // Box-Muller; one of the pair is dropped so that the position alone is the state.
  const double u = 1.0 - uniform(), v = uniform();
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

uint64_t RandomStream::below(uint64_t n) {
  const uint64_t limit = UINT64_MAX - UINT64_MAX % n;
  for (;;) {
    const uint64_t high = next_u32(), x = high << 32 | next_u32();
    if (x < limit) return x % n;
  }
}

std::vector<uint32_t> RandomStream::permutation(uint32_t n) {
  std::vector<uint32_t> p(n);
  std::iota(p.begin(), p.end(), 0u);
  for (uint32_t i = n; i > 1; --i) std::swap(p[i - 1], p[below(i)]);
  return p;
}

}  // namespace sinkgrad
