// y = g s x, s = 1 / (1 + e^-g)      dg = dy x s (1 + g (1 - s))      dx = dy g s
#include "cuda/kernel.h"

namespace sinkgrad::cuda {
namespace {

template <class T>
__device__ T sigmoid(T g) {
  return 1 / (1 + exp(-g));
}

template <class T>
__global__ void swiglu(Span<const T> gate, Span<const T> x, Span<T> y) {
  for (int64_t i = thread_index(); i < y.count; i += thread_count()) {
    const T g = gate[i];
    y[i] = g * sigmoid(g) * x[i];
  }
}

template <class T>
__global__ void swiglu_gate_gradient(Span<const T> gate, Span<const T> x, Span<const T> dy, GradSpan<T> dgate) {
  for (int64_t i = thread_index(); i < dy.count; i += thread_count()) {
    const T g = gate[i], s = sigmoid(g);
    dgate.put(i, dy[i] * x[i] * s * (1 + g * (1 - s)));
  }
}

template <class T>
__global__ void swiglu_x_gradient(Span<const T> gate, Span<const T> dy, GradSpan<T> dx) {
  for (int64_t i = thread_index(); i < dy.count; i += thread_count()) {
    const T g = gate[i];
    dx.put(i, dy[i] * g * sigmoid(g));
  }
}

void forward(const Forward& f) {
  const Launch shape = grid_stride(f.out.shape.count());
  dispatch(f.dtype(), [&]<class T>() { launch(KERNEL(swiglu<T>), shape, span<const T>(f.in[0]), span<const T>(f.in[1]), span<T>(f.out)); });
}

void backward(const Backward& b) {
  const Launch shape = grid_stride(b.out.shape.count());
  dispatch(b.dtype(), [&]<class T>() {
    const auto gate = span<const T>(b.in[0]), x = span<const T>(b.in[1]), dy = span<const T>(b.out_grad);
    if (b.in_grad[0]) launch(KERNEL(swiglu_gate_gradient<T>), shape, gate, x, dy, span<T>(b.in_grad[0]));
    if (b.in_grad[1]) launch(KERNEL(swiglu_x_gradient<T>), shape, gate, dy, span<T>(b.in_grad[1]));
  });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("swiglu", {forward, backward});

}  // namespace
}  // namespace sinkgrad::cuda
