// bf16 operands of matrix products on a CPU: memory stays f32, products round what they pack.
#pragma once
#include <bit>
#include <cstdint>

namespace sinkgrad::cpu {

/// Two bf16 numbers that follow one another in the summed index of a product, the first in the lower half. Multiplied in f32.
struct Bf16Pair {
  uint32_t bits;
};
/// The same, multiplied by AVX512_BF16 instructions.
struct NativeBf16Pair {
  uint32_t bits;
};
/// The same, multiplied in tiles of 16 x 16 by AMX.
struct TiledBf16Pair {
  uint32_t bits;
};

/// The upper half of x after rounding to the nearest bf16, ties to even; NaN stays NaN.
inline uint32_t bf16_bits(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return (x != x ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

}  // namespace sinkgrad::cpu
