// y_d = max_n x_nd over the unmasked n, won by member w_d (kept; -1: none)        dx_nd = dy_d [n = w_d]
#include <cstring>

#include "core/op.h"
#include "core/parallel.h"

namespace sinkgrad::cpu {

void max_pool_set_forward(const Forward& f) {
  const Shape& shape = f.in[0].shape;
  const int64_t members = shape[1], width = shape[2];
  dispatch(f.dtype(), [&]<class T>() {
    parallel_for(shape[0], grain_for(members * width), [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        T *best = f.out.as<T>() + b * width, *winner = f.saved[0].as<T>() + b * width;
        std::fill_n(best, width, T(0));
        std::fill_n(winner, width, T(-1));
        bool first = true;
        for (int64_t n = 0; n < members; ++n) {
          if (f.in[1] && f.in[1].as<int32_t>()[b * members + n]) continue;
          const T* x = f.in[0].as<T>() + (b * members + n) * width;
          for (int64_t d = 0; d < width; ++d) {
            const bool wins = first || x[d] > best[d] || x[d] != x[d];  // NaN wins, so that it is seen
            best[d] = wins ? x[d] : best[d];
            winner[d] = wins ? static_cast<T>(n) : winner[d];
          }
          first = false;
        }
      }
    });
  });
}

void max_pool_set_backward(const Backward& b) {
  const Grad& grad = b.in_grad[0];
  if (!grad) return;
  const int64_t members = b.in[0].shape[1], width = b.in[0].shape[2];
  dispatch(b.dtype(), [&]<class T>() {
    parallel_for(b.in[0].shape[0], grain_for(members * width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* dx = grad.as<T>() + i * members * width;
        if (!grad.add) std::fill_n(dx, members * width, T(0));
        for (int64_t d = 0; d < width; ++d)
          if (const auto winner = static_cast<int64_t>(b.saved[0].as<T>()[i * width + d]); winner >= 0)
            dx[winner * width + d] += b.out_grad.as<T>()[i * width + d];
      }
    });
  });
}

}  // namespace sinkgrad::cpu
