// y = g s x, s = 1 / (1 + e^-g)      dg = dy x s (1 + g (1 - s))      dx = dy g s
#include <cmath>

#include "core/op.h"
#include "core/parallel.h"

namespace sinkgrad::cpu {
namespace {

template <class T>
T sigmoid(T g) {
  return 1 / (1 + std::exp(-g));
}

/// body(i) for every element, on all cores.
template <class Body>
void each(const View& y, Body body) {
  parallel_for(y.shape.count(), grain_for(16), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace

void swiglu_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    const T *gate = f.in[0].as<T>(), *x = f.in[1].as<T>();
    each(f.out, [&](int64_t i) { f.out.as<T>()[i] = gate[i] * sigmoid(gate[i]) * x[i]; });
  });
}

void swiglu_backward(const Backward& b) {
  dispatch(b.dtype(), [&]<class T>() {
    const T *gate = b.in[0].as<T>(), *x = b.in[1].as<T>(), *dy = b.out_grad.as<T>();
    if (const Grad& dgate = b.in_grad[0])
      each(b.out, [&](int64_t i) {
        const T s = sigmoid(gate[i]);
        put(dgate.as<T>()[i], dy[i] * x[i] * s * (1 + gate[i] * (1 - s)), dgate.add);
      });
    if (const Grad& dx = b.in_grad[1]) each(b.out, [&](int64_t i) { put(dx.as<T>()[i], dy[i] * gate[i] * sigmoid(gate[i]), dx.add); });
  });
}

}  // namespace sinkgrad::cpu
