// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
// The key is seed and stream name, the counter is step and element, so any element can be drawn again, anywhere.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sinkgrad {

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock philox4x32(PhiloxBlock counter, uint64_t key) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(b), static_cast<uint32_t>(a >> 32) ^ counter[3] ^ k1,
               static_cast<uint32_t>(a)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return counter;
}

/// Four words for block `block` of step `step`.
inline PhiloxBlock philox_block(uint64_t key, uint64_t step, uint64_t block) {
  return philox4x32(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)}, key);
}

/// 53 bits of a name (FNV-1a): fits an op attribute exactly.
constexpr uint64_t stream_id(std::string_view name) {
  uint64_t h = 0xcbf29ce484222325;
  for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return h >> 11;
}

/// Mixes a seed and a stream into a Philox key (the finaliser of splitmix64).
constexpr uint64_t philox_key(uint64_t seed, uint64_t stream) {
  uint64_t z = seed * 0x9E3779B97F4A7C15 + stream;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

/// What keys the random ops of a tape.
struct RandomState {
  uint64_t seed = 0, step = 0;
  /// Where the kernels of a GPU find the step in its memory; null: they use `step`. So a recorded step (core/replay.h) draws anew each time.
  const uint64_t* step_on_device = nullptr;
};

/// A sequence of numbers from one named stream. The position is the whole state.
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view name, uint64_t step = 0) : key_(philox_key(seed, stream_id(name))), step_(step) {}
  uint32_t next_u32() {
    if (used_ == 4) refill();
    return block_[used_++];
  }
  /// Uniform in [0, 1) with 53 bits.
  double uniform();
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  double normal();
  /// Uniform in 0 .. n-1, without bias.
  uint64_t below(uint64_t n);
  /// A random order of 0 .. n-1.
  std::vector<uint32_t> permutation(uint32_t n);

 private:
  void refill() {
    block_ = philox_block(key_, step_, next_block_++);
    used_ = 0;
  }
  uint64_t key_, step_, next_block_ = 0;
  PhiloxBlock block_{};
  int used_ = 4;
};

}  // namespace sinkgrad
