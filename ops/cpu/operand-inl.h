// What operands of products hold, for one instruction set: numbers, or pairs of bf16 (ops/cpu/bf16.h) that are added to f32 sums. A vector
// of pairs is a vector of floats to everything that only moves it.
#if defined(SINKGRAD_OPERAND_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SINKGRAD_OPERAND_INL
#undef SINKGRAD_OPERAND_INL
#else
#define SINKGRAD_OPERAND_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <type_traits>

#include "core/dtype.h"
#include "ops/cpu/bf16.h"
#include "ops/cpu/instructions.h"

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::CappedTag<T, 64 / sizeof(T)>;
template <class T>
using Vec = hn::Vec<Tag<T>>;

template <class U>
constexpr bool kTiled = std::is_same_v<U, TiledBf16Pair>;
/// Rounded by an instruction.
template <class U>
constexpr bool kNative = kTiled<U> || std::is_same_v<U, NativeBf16Pair>;
template <class U>
constexpr bool kPairs = kNative<U> || std::is_same_v<U, Bf16Pair>;
/// Numbers in an element.
template <class U>
constexpr int64_t kTogether = kPairs<U> ? 2 : 1;
/// Rows of an AMX tile, and elements in a row of one.
constexpr int64_t kTileSide = 16;
/// The type of sums.
template <class U>
using Sum = std::conditional_t<kPairs<U>, float, U>;
/// Elements of type U that hold `depth` numbers, whole tiles of them where products come in tiles; what is left of them is 0.
template <class U>
constexpr int64_t elements(int64_t depth) {
  const int64_t count = (depth + kTogether<U> - 1) / kTogether<U>;
  return kTiled<U> ? (count + kTileSide - 1) / kTileSide * kTileSide : count;
}

/// Rows that a left operand or a sum of `rows` rows needs room for.
template <class U>
constexpr int64_t whole_tiles(int64_t rows) {
  return kTiled<U> ? (rows + kTileSide - 1) / kTileSide * kTileSide : rows;
}

template <class T>
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(Tag<Sum<T>>()));

template <class T>
HWY_INLINE Vec<T> Load(const T* p) {
  return hn::LoadU(Tag<T>(), p);
}
/// The first `count` numbers from p, then 0; nothing beyond them is touched.
template <class T>
HWY_INLINE Vec<T> LoadFirst(const T* p, int64_t count) {
  return hn::MaskedLoad(hn::FirstN(Tag<T>(), static_cast<size_t>(std::clamp<int64_t>(count, 0, kLanes<T>))), Tag<T>(), p);
}
template <class T>
HWY_INLINE void Store(Vec<T> v, T* p) {
  hn::StoreU(v, Tag<T>(), p);
}
template <class T>
HWY_INLINE Vec<T> Set(T x) {
  return hn::Set(Tag<T>(), x);
}

template <class U>
HWY_INLINE Vec<Sum<U>> LoadOperand(const U* p) {
  return Load(reinterpret_cast<const Sum<U>*>(p));
}
template <class U>
HWY_INLINE void StoreOperand(Vec<Sum<U>> v, U* p) {
  Store(v, reinterpret_cast<Sum<U>*>(p));
}
template <class U>
HWY_INLINE Vec<Sum<U>> Broadcast(const U& x) {
  if constexpr (kPairs<U>)
    return Set(std::bit_cast<float>(x.bits));
  else
    return Set(x);
}

// Highway 1.0 has no AVX512_BF16, and neither have the compiler's options for its targets.
template <class V>
HWY_INLINE V DotNative(V a, V b, V sum) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
}
/// The bf16 of `first` in the lower half, those of `second` in the upper.
template <class V>
HWY_INLINE V RoundNative(V first, V second) {
  V halves;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(halves.raw) : "v"(first.raw), "v"(second.raw));
  return halves;
}
/// The two halves lane by lane.
template <class V>
HWY_INLINE V InterleaveNative(V halves) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  alignas(64) static constexpr uint16_t kOrder[] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  halves.raw = _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), _mm512_castps_si512(halves.raw)));
#endif
  return halves;
}

/// sum + a b; of pairs, the second numbers' product first, as the instruction does.
template <class U>
HWY_INLINE Vec<Sum<U>> MultiplyAdd(Vec<Sum<U>> a, Vec<Sum<U>> b, Vec<Sum<U>> sum) {
  if constexpr (kNative<U>) {
    return DotNative(a, b, sum);
  } else if constexpr (kPairs<U>) {
    const Tag<float> d;
    const Tag<uint32_t> bits;
    auto first = [&](auto v) HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<16>(hn::BitCast(bits, v))); };
    auto second = [&](auto v) HWY_ATTR { return hn::BitCast(d, hn::And(hn::BitCast(bits, v), hn::Set(bits, 0xffff0000u))); };
    return hn::MulAdd(first(a), first(b), hn::MulAdd(second(a), second(b), sum));
  } else {
    return hn::MulAdd(a, b, sum);
  }
}

/// Lane by lane, x rounded and y rounded.
template <class U>
HWY_INLINE Vec<float> Pairs(Vec<float> x, Vec<float> y) {
  if constexpr (kNative<U>) {
    return InterleaveNative(RoundNative(x, y));
  } else {
    const Tag<float> d;
    const Tag<uint32_t> d32;
    auto round = [&](auto v) HWY_ATTR {
      const auto bits = hn::BitCast(d32, v), odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
      const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu)));
      return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), hn::Or(bits, hn::Set(d32, 0x400000u)), rounded);
    };
    return hn::BitCast(d, hn::Or(hn::ShiftRight<16>(round(x)), hn::And(round(y), hn::Set(d32, 0xffff0000u))));
  }
}
/// The pairs of two vectors of numbers that follow one another.
template <class U>
HWY_INLINE Vec<float> PairsInOrder(Vec<float> low, Vec<float> high) {
  if constexpr (kNative<U>) {
    return RoundNative(low, high);
  } else {
#if HWY_TARGET == HWY_SCALAR
    return Pairs<U>(low, high);
#else
    const Tag<float> d;
    return Pairs<U>(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low));
#endif
  }
}

/// body.operator()<U>() for the operands of f32 products in a precision.
template <class Body>
auto with_operand_type(Precision precision, const Body& body) {
  if (precision != Precision::bf16) return body.template operator()<float>();
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if (has_bf16_tiles()) return body.template operator()<TiledBf16Pair>();
  if (has_bf16_instructions()) return body.template operator()<NativeBf16Pair>();
#endif
  return body.template operator()<Bf16Pair>();
}

}  // namespace sinkgrad::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
