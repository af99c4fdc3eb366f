// y[b, patch, (row, column, channel)] = x[b, channel, h, w]    dx = dy, moved back
#include <type_traits>

#include "core/op.h"
#include "core/parallel.h"

namespace sinkgrad::cpu {
namespace {

/// body(image offset, patch offset, p, step) for every row of p pixels of a patch, in parallel: they follow one another in the image and lie `step`,
/// the number of channels, apart in the patch.
template <class Body>
void each_row(const Shape& images, const Attrs& attrs, Body body) {
  const int64_t C = images[1], H = images[2], W = images[3], p = attrs.integer("patch"), across = W / p;
  parallel_for(images[0] * H, grain_for(W * C), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / H, h = i % H, image = (b * C * H + h) * W, first = (b * (H / p) + h / p) * across;
      for (int64_t k = 0; k < across; ++k) {
        const int64_t patch = ((first + k) * p + h % p) * p * C;
        if (C == 1)
          body(image + k * p, patch, p, std::integral_constant<int64_t, 1>());
        else
          for (int64_t c = 0; c < C; ++c) body(image + c * H * W + k * p, patch + c, p, C);
      }
    }
  });
}

}  // namespace

void patchify_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    each_row(f.in[0].shape, f.attrs, [x = f.in[0].as<T>(), y = f.out.as<T>()](int64_t image, int64_t patch, int64_t p, auto step) {
      for (int64_t w = 0; w < p; ++w) y[patch + w * step] = x[image + w];
    });
  });
}

void patchify_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() {
    each_row(b.in[0].shape, b.attrs,
             [dx = b.in_grad[0].as<T>(), dy = b.out_grad.as<T>(), add = b.in_grad[0].add](int64_t image, int64_t patch, int64_t p, auto step) {
               for (int64_t w = 0; w < p; ++w) put(dx[image + w], dy[patch + w * step], add);
             });
  });
}

}  // namespace sinkgrad::cpu
