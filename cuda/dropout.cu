// y = x keep / (1 - p)        dx = dy keep / (1 - p)
// Element i (of the whole batch) is kept when the upper 24 bits of word i % 4 of Philox block i / 4 are at least p 2^24. The mask is drawn again for
// the backward: each direction reads one tensor and writes one.
#include <cmath>

#include "cuda/elementwise.h"
#include "cuda/philox.h"

namespace sinkgrad::cuda {
namespace {

constexpr int kBlock = 4;  // words, each for one element

/// A thread takes the elements of a Philox block, in packs of `width`. x begins with the element of word `skipped` of block `first_block`.
template <class T, int width>
__global__ void drop_kernel(Span<const T> x, GradSpan<T> y, PhiloxKey key, int64_t first_block, int skipped, int threshold, T scale) {
  const PhiloxKey random = key.read();
  const int64_t count = x.count;
#pragma unroll 1
  for (int64_t block = thread_index(); block * kBlock < count + skipped; block += thread_count()) {
    const PhiloxWords words = philox_words(random, static_cast<uint64_t>(first_block + block));
    const int64_t first = block * kBlock - skipped;
    auto drop = [&]<int n>(int k) {  // elements k .. k+n-1 of the block
      Pack<T, n> value = load_pack<n>(x, first + k);
#pragma unroll
      for (int i = 0; i < n; ++i) value.x[i] = static_cast<int>(words.x[k + i] >> 8) >= threshold ? value.x[i] * scale : T(0);
      put_pack(y, first + k, value);
    };
    if (first >= 0 && first + kBlock <= count) {
#pragma unroll
      for (int k = 0; k < kBlock; k += width) drop.template operator()<width>(k);
    } else {
#pragma unroll
      for (int k = 0; k < kBlock; ++k)
        if (first + k >= 0 && first + k < count) drop.template operator()<1>(k);
    }
  }
}

void drop(const View& x, const Grad& y, const Attrs& attrs, const RandomState& random) {
  const double p = attrs.get("p");
  const PhiloxKey key = device_random(random, static_cast<uint64_t>(attrs.get("stream")));
  const auto first = static_cast<int64_t>(attrs.get("first", 0));
  const auto skipped = static_cast<int>(first % kBlock);
  dispatch(x.dtype, [&]<class T>() {
    const Span<const T> from = span<const T>(x);
    const GradSpan<T> to = span<T>(y);
    with_width<T>(skipped == 0 && aligned(from, to.data), [&]<int width>() {
      launch(KERNEL(drop_kernel<T, width>), grid_stride((from.count + skipped + kBlock - 1) / kBlock), from, to, key, first / kBlock, skipped,
             static_cast<int>(std::lround(p * 0x1p24)), p < 1 ? static_cast<T>(1 / (1 - p)) : T(0));
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
