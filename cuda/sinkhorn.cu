// sinkhorn: scores to plan, in the log domain, every exponent evaluated jointly. With x the scores minus their row maxima, row
// targets 1 and column targets b (valid rows / valid columns), f_k and g_k alternate, g_{-1} = 0:
//   f_k = -log sum_j exp(x + g_{k-1})      g_k = log b - log sum_i exp(x + f_k)      plan = exp(x + f + g)
// A matrix that fits a block or a cluster stays on chip (sinkhorn_resident.cu); others are swept (sinkhorn_streamed.cu).
#include "cuda/sinkhorn_call.h"

namespace sinkgrad::cuda {
namespace {

void forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    const SinkhornCall<T> call(f.in, f.saved, f.attrs);
    if (!resident_sinkhorn_forward(call, span<T>(f.out))) streamed_sinkhorn_forward(call, span<T>(f.out));
  });
}

void backward(const Backward& b) {
  if (!b.in_grad[0] || b.out.shape.count() == 0) return;
  dispatch(b.dtype(), [&]<class T>() {
    const SinkhornCall<T> call(b.in, b.saved, b.attrs);
    const auto dy = span<const T>(b.out_grad);
    const auto dx = span<T>(b.in_grad[0]);
    if (call.gradient == SinkhornGradient::implicit)
      implicit_sinkhorn_backward(call, dy, dx);
    else if (!resident_sinkhorn_backward(call, dy, dx))
      streamed_sinkhorn_backward(call, dy, dx);
  });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("sinkhorn", {forward, backward});

}  // namespace
}  // namespace sinkgrad::cuda
