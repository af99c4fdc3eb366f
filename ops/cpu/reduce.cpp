// sum:   y = sum x        dx = dy
// mean:  y = sum x / n    dx = dy / n
// max:   y = max x        dx = dy at the first maximal element, 0 elsewhere
// where dy is broadcast over the reduced axes.
#include <limits>

#include "ops/cpu/broadcast_walk.h"
#include "ops/shape_rules.h"

namespace sinkgrad::cpu {
namespace {

using Tile = BroadcastWalk::Tile;
using Run = BroadcastWalk::Run;

/// 1 over the number of elements that are averaged.
template <class T>
T mean_scale(const Shape& shape, const Attrs& attrs) {
  return T(1) / static_cast<T>(reduced_count(shape, attrs));
}

}  // namespace

void sum_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() { sum_to(f.in[0].as<T>(), f.in[0].shape, f.out.as<T>(), reduced_shape(f.in[0].shape, f.attrs), T(1), false); });
}
void sum_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const Shape& shape = b.in[0].shape;
  dispatch(b.dtype(),
           [&]<class T>() { expand(b.out_grad.as<T>(), reduced_shape(shape, b.attrs), b.in_grad[0].as<T>(), shape, T(1), b.in_grad[0].add); });
}

void mean_forward(const Forward& f) {
  const Shape& shape = f.in[0].shape;
  dispatch(f.dtype(),
           [&]<class T>() { sum_to(f.in[0].as<T>(), shape, f.out.as<T>(), reduced_shape(shape, f.attrs), mean_scale<T>(shape, f.attrs), false); });
}
void mean_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const Shape& shape = b.in[0].shape;
  dispatch(b.dtype(), [&]<class T>() {
    expand(b.out_grad.as<T>(), reduced_shape(shape, b.attrs), b.in_grad[0].as<T>(), shape, mean_scale<T>(shape, b.attrs), b.in_grad[0].add);
  });
}

// NaN counts as larger than everything, so that it is not lost.
void max_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    const T* x = f.in[0].as<T>();
    const BroadcastWalk walk(reduced_shape(f.in[0].shape, f.attrs), {}, f.in[0].shape, BroadcastWalk::a);
    walk.each_tile([&](const Tile& tile) {
      T* y = f.out.as<T>() + tile.begin;
      std::fill_n(y, tile.width, -std::numeric_limits<T>::infinity());
      tile.runs([&](const Run& run) {
        for (int64_t j = 0; j < run.length; ++j) {
          const T v = x[run.out + j];
          T& top = y[tile.column(j)];
          if (v > top || v != v) top = v;
        }
      });
    });
  });
}

void max_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() {
    const T *x = b.in[0].as<T>(), *y = b.out.as<T>(), *dy = b.out_grad.as<T>();
    T* dx = b.in_grad[0].as<T>();
    const BroadcastWalk walk(reduced_shape(b.in[0].shape, b.attrs), {}, b.in[0].shape, BroadcastWalk::a);
    walk.each_tile([&](const Tile& tile) {
      bool found[BroadcastWalk::kBlock] = {};
      tile.runs([&](const Run& run) {
        for (int64_t j = 0; j < run.length; ++j) {
          const int64_t k = tile.column(j);
          const T v = x[run.out + j], top = y[tile.begin + k];
          const bool first = !found[k] && (v == top || (v != v && top != top));
          found[k] |= first;
          put(dx[run.out + j], first ? dy[tile.begin + k] : T(0), b.in_grad[0].add);
        }
      });
    });
  });
}

}  // namespace sinkgrad::cpu
