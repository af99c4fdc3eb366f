// The table below is the mathematics: y, dL/da and dL/db from a, b, y and g = dL/dy, for one element.
// Operands broadcast; the gradient of one that does is the sum over the elements it stood for.
#include "ops/cpu/broadcast_walk.h"

namespace sinkgrad::cpu {
namespace {

template <class Formula>
void forward(const Forward& f, Formula formula) {
  dispatch(f.dtype(), [&]<class T>() {
    const T *a = f.in[0].as<T>(), *b = f.in[1].as<T>();
    T* y = f.out.as<T>();
    if (f.in[0].shape == f.in[1].shape)
      return parallel_for(f.out.shape.count(), grain_for(1), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[i] = formula(a[i], b[i]);
      });
    const BroadcastWalk walk(f.in[0].shape, f.in[1].shape, f.out.shape, BroadcastWalk::out);
    walk.each_tile([&](const BroadcastWalk::Tile& tile) {
      tile.runs([&](const BroadcastWalk::Run& run) {
        walk.with_steps([&](auto step_a, auto step_b) {
          for (int64_t j = 0; j < run.length; ++j) y[run.out + j] = formula(a[run.a + j * step_a], b[run.b + j * step_b]);
        });
      });
    });
  });
}

template <class Formula>
void backward(const Backward& f, BroadcastWalk::Member operand, Formula formula) {
  const Grad& grad = f.in_grad[operand];
  if (!grad) return;
  dispatch(f.dtype(), [&]<class T>() {
    const T *a = f.in[0].as<T>(), *b = f.in[1].as<T>(), *y = f.out.as<T>(), *g = f.out_grad.as<T>();
    if (f.in[0].shape == f.in[1].shape)
      return parallel_for(f.out.shape.count(), grain_for(1), [&](int64_t begin, int64_t end) {
        T* d = grad.as<T>();
        for (int64_t i = begin; i < end; ++i) put(d[i], formula(a[i], b[i], y[i], g[i]), grad.add);
      });
    const BroadcastWalk walk(f.in[0].shape, f.in[1].shape, f.out.shape, operand);
    walk.each_tile([&](const BroadcastWalk::Tile& tile) {
      T sums[BroadcastWalk::kBlock], terms[BroadcastWalk::kBlock];
      std::fill_n(sums, tile.width, T(0));
      tile.runs([&](const BroadcastWalk::Run& run) {
        walk.with_steps([&](auto step_a, auto step_b) {
          for (int64_t j = 0; j < run.length; ++j) terms[j] = formula(a[run.a + j * step_a], b[run.b + j * step_b], y[run.out + j], g[run.out + j]);
        });
        tile.fold(terms, run.length, sums);
      });
      for (int64_t j = 0; j < tile.width; ++j) put(grad.as<T>()[tile.begin + j], sums[j], grad.add);
    });
  });
}

}  // namespace

#define BINARY(op, value, grad_a, grad_b)                                                                                                    \
  void op##_forward(const Forward& f) {                                                                                                      \
    forward(f, [](auto a, auto b) { return value; });                                                                                        \
  }                                                                                                                                          \
  void op##_backward(const Backward& f) {                                                                                                    \
    backward(f, BroadcastWalk::a, []([[maybe_unused]] auto a, [[maybe_unused]] auto b, [[maybe_unused]] auto y, auto g) { return grad_a; }); \
    backward(f, BroadcastWalk::b, []([[maybe_unused]] auto a, [[maybe_unused]] auto b, [[maybe_unused]] auto y, auto g) { return grad_b; }); \
  }

// clang-format off
//     op   y      dL/da  dL/db
BINARY(add, a + b, g,     g)
BINARY(sub, a - b, g,     -g)
BINARY(mul, a * b, g * b, g * a)
BINARY(div, a / b, g / b, -g * y / b)
// clang-format on

}  // namespace sinkgrad::cpu
