// y = x keep / (1 - p)        dx = dy keep / (1 - p)
#include <algorithm>
#include <cmath>

#include "core/op.h"
#include "core/parallel.h"

namespace sinkgrad::cpu {
namespace {

/// Element i is kept when the upper 24 bits of word i % 4 of Philox block i / 4 are at least p 2^24.
template <class T>
void drop(const T* x, T* y, int64_t n, const Attrs& attrs, const RandomState& random, bool add) {
  const double p = attrs.get("p");
  const auto threshold = static_cast<int32_t>(std::lround(p * 0x1p24));
  const T scale = p < 1 ? static_cast<T>(1 / (1 - p)) : T(0);
  const uint64_t key = philox_key(random.seed, static_cast<uint64_t>(attrs.get("stream")));
  constexpr int64_t kTile = 64;
  parallel_for((n + kTile - 1) / kTile, grain_for(16 * kTile), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * kTile; first < std::min(n, end * kTile); first += kTile) {
      int32_t draws[kTile];
      for (int64_t k = 0; k < kTile; k += 4) {
        const PhiloxBlock words = philox_block(key, random.step, static_cast<uint64_t>((first + k) / 4));
        for (size_t w = 0; w < 4; ++w) draws[k + static_cast<int64_t>(w)] = static_cast<int32_t>(words[w] >> 8);
      }
      const int64_t count = std::min(kTile, n - first);
      for (int64_t k = 0; k < count; ++k) {
        const T scaled = x[first + k] * scale;
        put(y[first + k], draws[k] >= threshold ? scaled : T(0), add);
      }
    }
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
