// y_t = table[i_t]        dtable[v] = sum of dy_t over all t with i_t = v, in the order of t (see rows.h)
#include "cuda/rows.h"

namespace sinkgrad::cuda {
namespace {

void forward(const Forward& f) {
  const Shape& table = f.in[1].shape;
  dispatch(f.dtype(), [&]<class T>() { gather_rows(span<const T>(f.in[1]), table[0], table[1], span<const int32_t>(f.in[0]), span<T>(f.out)); });
}

void backward(const Backward& b) {
  if (!b.in_grad[1]) return;
  const Shape& table = b.in[1].shape;
  dispatch(b.dtype(),
           [&]<class T>() { scatter_rows_sum(span<const T>(b.out_grad), span<const int32_t>(b.in[0]), table[0], table[1], span<T>(b.in_grad[1])); });
}

[[maybe_unused]] const bool registered = register_cuda_kernels("embedding", {forward, backward});

}  // namespace
}  // namespace sinkgrad::cuda
