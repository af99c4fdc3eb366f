// y[b, patch, (row, column, channel)] = x[b, channel, h, w]    dx = dy, moved back
// Each direction writes its output in order; the other side is read in pieces of a patch's line, whose neighbours come from cache.
#include "cuda/walk.h"

namespace sinkgrad::cuda {
namespace {

void forward(const Forward& f) {
  const Shape& x = f.in[0].shape;
  const int64_t C = x[1], H = x[2], W = x[3], p = f.attrs.integer("patch");
  Walk<2> walk;  // strides of y, x
  walk.add(C, {1, H * W});
  walk.add(p, {C, 1});
  walk.add(p, {p * C, W});
  walk.add(W / p, {p * p * C, p});
  walk.add(H / p, {W * p * C, p * W});
  walk.add(x[0], {C * H * W, C * H * W});
  dispatch(f.dtype(), [&]<class T>() { copy<T>(walk, span<const T>(f.in[0]), {span<T>(f.out)}); });
}

void backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const Shape& x = b.in[0].shape;
  const int64_t C = x[1], H = x[2], W = x[3], p = b.attrs.integer("patch");
  Walk<2> walk;  // strides of dx, dy
  walk.add(p, {1, C});
  walk.add(W / p, {p, p * p * C});
  walk.add(p, {W, p * C});
  walk.add(H / p, {p * W, W * p * C});
  walk.add(C, {H * W, 1});
  walk.add(x[0], {C * H * W, C * H * W});
  dispatch(b.dtype(), [&]<class T>() { copy<T>(walk, span<const T>(b.out_grad), span<T>(b.in_grad[0])); });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("patchify", {forward, backward});

}  // namespace
}  // namespace sinkgrad::cuda
