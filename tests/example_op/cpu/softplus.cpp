// y = log(1 + e^x)      dx = dy / (1 + e^-x)
#include <cmath>

#include "core/op.h"
#include "core/parallel.h"

namespace sinkgrad::cpu {

void softplus_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    parallel_for(f.out.shape.count(), grain_for(16), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T x = f.in[0].as<T>()[i];
        f.out.as<T>()[i] = std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
      }
    });
  });
}

void softplus_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() {
    parallel_for(b.out.shape.count(), grain_for(16), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        put(b.in_grad[0].as<T>()[i], b.out_grad.as<T>()[i] / (1 + std::exp(-b.in[0].as<T>()[i])), b.in_grad[0].add);
    });
  });
}

}  // namespace sinkgrad::cpu
