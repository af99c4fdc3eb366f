// Philox4x32-10 on the device: the same words as core/rng.h gives.
#pragma once
#include "cuda/kernel.h"

namespace sinkgrad::cuda {

/// What a kernel draws from: the key of seed and stream, and the step. A kernel begins by calling read().
struct PhiloxKey {
  uint64_t key, step;
  Span<const uint64_t> step_memory;  ///< where the step lies when a recorded launch is to be repeated with other steps, else null
  __device__ PhiloxKey read() const { return {key, step_memory ? static_cast<uint64_t>(step_memory[0]) : step, {}}; }
};
/// The one place where random ops learn seed and step.
inline PhiloxKey device_random(const RandomState& random, uint64_t stream) {
  return {philox_key(random.seed, stream), random.step, {random.step_on_device, random.step_on_device ? 1 : 0}};
}

struct PhiloxWords {
  uint32_t x[4];
};
/// Four words for block `block`, see philox_block().
__device__ inline PhiloxWords philox_words(const PhiloxKey& random, uint64_t block) {
  auto k0 = static_cast<uint32_t>(random.key), k1 = static_cast<uint32_t>(random.key >> 32);
  PhiloxWords w = {{static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(random.step),
                    static_cast<uint32_t>(random.step >> 32)}};
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * w.x[0], b = uint64_t{0xCD9E8D57} * w.x[2];
    w = {{static_cast<uint32_t>(b >> 32) ^ w.x[1] ^ k0, static_cast<uint32_t>(b), static_cast<uint32_t>(a >> 32) ^ w.x[3] ^ k1,
          static_cast<uint32_t>(a)}};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return w;
}

}  // namespace sinkgrad::cuda
