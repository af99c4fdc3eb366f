// y = x keep / (1 - p)        dx = dy keep / (1 - p)
// Element i is kept when the upper 24 bits of word i % 4 of Philox block i / 4 are at least p 2^24. The mask is drawn again for the
// backward: each direction reads one tensor and writes one.
#include <cmath>

#include "cuda/elementwise.h"
#include "cuda/philox.h"

namespace sinkgrad::cuda {
namespace {

/// A thread takes the elements of a Philox block, in packs of `width`.
template <class T, int width>
__global__ void drop_kernel(Span<const T> x, GradSpan<T> y, PhiloxKey key, int threshold, T scale) {
  constexpr int kBlock = 4;
  const PhiloxKey random = key.read();
  const int64_t count = x.count;
#pragma unroll 1
  for (int64_t block = thread_index(); block * kBlock < count; block += thread_count()) {
    const PhiloxWords words = philox_words(random, static_cast<uint64_t>(block));
    const int64_t first = block * kBlock;
    auto drop = [&]<int n>(int k) {  // elements k .. k+n-1 of the block
      Pack<T, n> value = load_pack<n>(x, first + k);
#pragma unroll
      for (int i = 0; i < n; ++i) value.x[i] = static_cast<int>(words.x[k + i] >> 8) >= threshold ? value.x[i] * scale : T(0);
      put_pack(y, first + k, value);
    };
    if (first + kBlock <= count) {
#pragma unroll
      for (int k = 0; k < kBlock; k += width) drop.template operator()<width>(k);
    } else {
#pragma unroll
      for (int k = 0; k < kBlock; ++k)
        if (first + k < count) drop.template operator()<1>(k);
    }
  }
}

void drop(const View& x, const Grad& y, const Attrs& attrs, const RandomState& random) {
  const double p = attrs.get("p");
  const PhiloxKey key = device_random(random, static_cast<uint64_t>(attrs.get("stream")));
  dispatch(x.dtype, [&]<class T>() {
    const Span<const T> from = span<const T>(x);
    const GradSpan<T> to = span<T>(y);
    with_width<T>(aligned(from, to.data), [&]<int width>() {
      launch(KERNEL(drop_kernel<T, width>), grid_stride((from.count + 3) / 4), from, to, key, static_cast<int>(std::lround(p * 0x1p24)),
             p < 1 ? static_cast<T>(1 / (1 - p)) : T(0));
    });
  });
}

void forward(const Forward& f) { drop(f.in[0], {f.out}, f.attrs, f.random); }
void backward(const Backward& b) {
  if (b.in_grad[0]) drop(b.out_grad, b.in_grad[0], b.attrs, b.random);
}

[[maybe_unused]] const bool registered = register_cuda_kernels("dropout", {forward, backward});

}  // namespace
}  // namespace sinkgrad::cuda
