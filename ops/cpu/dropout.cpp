// y = x keep / (1 - p)        dx = dy keep / (1 - p)
// Element i (of the whole batch) is kept when the upper 24 bits of word i % 4 of Philox block i / 4 are at least p 2^24. Written once with Highway, a
// block in each 64-bit lane; this file is compiled once per instruction set.
#include <algorithm>
#include <cmath>

#include "core/op.h"
#include "core/parallel.h"

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/dropout.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#ifndef SINKGRAD_DROPOUT_MASK
#define SINKGRAD_DROPOUT_MASK
namespace sinkgrad::cpu {

/// Elements whose draws are made at a time.
inline constexpr int64_t kDropoutTile = 64;

/// What decides which elements are kept, and the factor of those.
struct DropoutMask {
  uint64_t key, step;
  int64_t first;  // number of the first element
  int32_t threshold;
  double scale;
};

}  // namespace sinkgrad::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace sinkgrad::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The upper 24 bits of the words of the tile's Philox blocks, from block `block` on (core/rng.h).
HWY_INLINE void Draw(const DropoutMask& mask, uint64_t block, int32_t* draws) {
#if HWY_TARGET == HWY_SCALAR
  for (uint64_t i = 0; i < kDropoutTile / 4; ++i)
    for (const uint32_t word : philox_block(mask.key, mask.step, block + i)) *draws++ = static_cast<int32_t>(word >> 8);
#else
  const hn::CappedTag<uint64_t, 8> d;
  const hn::Repartition<uint32_t, decltype(d)> words;
  const hn::Repartition<int32_t, decltype(d)> signed_words;
  const size_t lanes = hn::Lanes(d);
  // Even lanes hold the first half of the blocks, odd lanes the second: interleaved words then come in order.
  HWY_ALIGN uint64_t order[8];
  for (size_t lane = 0; lane < lanes; ++lane) order[lane] = lane / 2 + lane % 2 * (lanes / 2);
  const auto high = hn::Set(d, ~uint64_t{0} << 32);
  auto product = [&](auto x, uint32_t factor) HWY_ATTR { return hn::MulEven(hn::BitCast(words, x), hn::Set(words, factor)); };
  for (size_t tile = 0; tile < kDropoutTile / 4; tile += lanes) {
    const auto counter = hn::Add(hn::Set(d, block + tile), hn::Load(d, order));
    // Words in the lower halves; what is in the upper ones does not matter.
    auto c0 = counter, c1 = hn::ShiftRight<32>(counter), c2 = hn::Set(d, mask.step), c3 = hn::Set(d, mask.step >> 32);
    auto k0 = static_cast<uint32_t>(mask.key), k1 = static_cast<uint32_t>(mask.key >> 32);
    for (int round = 0; round < 10; ++round) {
      const auto a = product(c0, 0xD2511F53), b = product(c2, 0xCD9E8D57);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(b), c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(a), c3), hn::Set(d, k1));
      c1 = b;
      c3 = a;
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
    const auto first = hn::Or(hn::AndNot(high, c0), hn::ShiftLeft<32>(c1)), second = hn::Or(hn::AndNot(high, c2), hn::ShiftLeft<32>(c3));
    auto store = [&](auto pairs, size_t at)
                     HWY_ATTR { hn::Store(hn::BitCast(signed_words, hn::ShiftRight<8>(hn::BitCast(words, pairs))), signed_words, draws + at); };
    store(hn::InterleaveLower(d, first, second), 4 * tile);
    store(hn::InterleaveUpper(d, first, second), 4 * tile + 2 * lanes);
  }
#endif
}

/// Elements begin .. begin + n - 1 of an array. Tiles begin at multiples of their size in the whole batch, so the first one may hang over.
template <class T>
void Drop(const DropoutMask& mask, int64_t begin, int64_t n, const T* x, T* y, bool add) {
  const hn::CappedTag<T, 64 / sizeof(T)> d;
  const hn::Rebind<int32_t, decltype(d)> whole;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const T factor = static_cast<T>(mask.scale);
  const auto scale = hn::Set(d, factor), threshold = hn::Set(d, static_cast<T>(mask.threshold));  // 24 bits are exact in every T
  HWY_ALIGN int32_t draws[kDropoutTile];
  for (int64_t tile = -((mask.first + begin) % kDropoutTile); tile < n; tile += kDropoutTile) {
    Draw(mask, static_cast<uint64_t>((mask.first + begin + tile) / 4), draws);
    const int64_t skipped = std::max<int64_t>(0, -tile), count = std::min(kDropoutTile, n - tile) - skipped;
    const T* from = x + begin + tile + skipped;
    T* to = y + begin + tile + skipped;
    const int32_t* own = draws + skipped;
    int64_t k = 0;
    for (; k + lanes <= count; k += lanes) {
      const auto draw = hn::LoadU(whole, own + k);
      const auto number = [&]() HWY_ATTR {
        if constexpr (sizeof(T) == 4)
          return hn::ConvertTo(d, draw);
        else
          return hn::PromoteTo(d, draw);
      }();
      const auto value = hn::IfThenElseZero(hn::Ge(number, threshold), hn::Mul(hn::LoadU(d, from + k), scale));
      hn::StoreU(add ? hn::Add(hn::LoadU(d, to + k), value) : value, d, to + k);
    }
    for (; k < count; ++k) put(to[k], own[k] >= mask.threshold ? from[k] * factor : T(0), add);
  }
}
void DropF32(const DropoutMask& mask, int64_t begin, int64_t n, const float* x, float* y, bool add) { Drop(mask, begin, n, x, y, add); }
void DropF64(const DropoutMask& mask, int64_t begin, int64_t n, const double* x, double* y, bool add) { Drop(mask, begin, n, x, y, add); }

}  // namespace HWY_NAMESPACE
}  // namespace sinkgrad::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinkgrad::cpu {
HWY_EXPORT(DropF32);
HWY_EXPORT(DropF64);

namespace {

template <class T>
void drop(const T* x, T* y, int64_t n, const Attrs& attrs, const RandomState& random, bool add) {
  const double p = attrs.get("p");
  const DropoutMask mask{.key = philox_key(random.seed, static_cast<uint64_t>(attrs.get("stream"))),
                         .step = random.step,
                         .first = static_cast<int64_t>(attrs.get("first", 0)),
                         .threshold = static_cast<int32_t>(std::lround(p * 0x1p24)),
                         .scale = p < 1 ? 1 / (1 - p) : 0};
  constexpr int64_t kChunk = 128 * kDropoutTile;
  parallel_for(n, kChunk, [&](int64_t begin, int64_t end) {
    if constexpr (sizeof(T) == 4)
      HWY_DYNAMIC_DISPATCH(DropF32)(mask, begin, end - begin, x, y, add);
    else
      HWY_DYNAMIC_DISPATCH(DropF64)(mask, begin, end - begin, x, y, add);
  });
}

}  // namespace

void dropout_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() { drop(f.in[0].as<T>(), f.out.as<T>(), f.out.shape.count(), f.attrs, f.random, false); });
}

void dropout_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() { drop(b.out_grad.as<T>(), b.in_grad[0].as<T>(), b.out.shape.count(), b.attrs, b.random, b.in_grad[0].add); });
}

}  // namespace sinkgrad::cpu
#endif
