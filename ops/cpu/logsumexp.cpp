// y = log sum_k exp(x_k)    dx_k = dy exp(x_k - y)
// With y = -inf every dx is 0; with y = +inf the elements that are +inf share dy equally.
#include <cmath>
#include <limits>

#include "core/op.h"
#include "core/parallel.h"
#include "ops/cpu/lines.h"
#include "ops/cpu/vector.h"

namespace sinkgrad::cpu {

void logsumexp_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    const Lines lines(f.in[0].shape, f.in[0].shape.axis(f.attrs.integer("axis"), "logsumexp"));
    parallel_for(lines.count, grain_for(lines.length * 4), [&](int64_t begin, int64_t end) {
      ScratchScope scratch;
      T* buffer = scratch.take<T>(lines.length);
      for (int64_t i = begin; i < end; ++i) {
        const T* x = lines.gather(f.in[0].as<T>(), i, buffer);
        const T top = vector_math<T>().max(x, lines.length);
        const T shift = std::isfinite(top) ? top : T(0);
        f.out.as<T>()[i] = shift + std::log(vector_math<T>().exp_shift(x, -shift, buffer, lines.length));
      }
    });
  });
}

void logsumexp_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    const Lines lines(b.in[0].shape, b.in[0].shape.axis(b.attrs.integer("axis"), "logsumexp"));
    parallel_for(lines.count, grain_for(lines.length * 4), [&](int64_t begin, int64_t end) {
      ScratchScope scratch;
      T *buffer = scratch.take<T>(lines.length), *weight = scratch.take<T>(lines.length);
      for (int64_t i = begin; i < end; ++i) {
        const T *x = lines.gather(b.in[0].as<T>(), i, buffer), y = b.out.as<T>()[i], dy = b.out_grad.as<T>()[i];
        T share = 1;
        if (y == -kInfinity) {
          std::fill_n(weight, lines.length, T(0));
        } else if (y == kInfinity) {
          for (int64_t k = 0; k < lines.length; ++k) weight[k] = x[k] == kInfinity ? T(1) : T(0);
          share = 1 / vector_math<T>().sum(weight, lines.length);
        } else {
          vector_math<T>().exp_shift(x, -y, weight, lines.length);
        }
        T* dx = b.in_grad[0].as<T>() + lines.offset(i);
        for (int64_t k = 0; k < lines.length; ++k) put(dx[k * lines.stride], dy * share * weight[k], b.in_grad[0].add);
      }
    });
  });
}

}  // namespace sinkgrad::cpu
