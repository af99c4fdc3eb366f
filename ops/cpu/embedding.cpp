// y_t = table[i_t]        dtable[v] = sum of dy_t over all t with i_t = v, in the order of t
#include <cstring>

#include "core/op.h"
#include "core/parallel.h"

namespace sinkgrad::cpu {

void embedding_forward(const Forward& f) {
  const int64_t count = f.in[0].shape.count(), columns = f.in[1].shape[1];
  const int32_t* index = f.in[0].as<int32_t>();
  dispatch(f.dtype(), [&]<class T>() {
    parallel_for(count, grain_for(columns), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        std::memcpy(f.out.as<T>() + t * columns, f.in[1].as<T>() + index[t] * columns, static_cast<size_t>(columns) * sizeof(T));
    });
  });
}

void embedding_backward(const Backward& b) {
  const Grad& grad = b.in_grad[1];
  if (!grad) return;
  const int64_t count = b.in[0].shape.count(), columns = b.in[1].shape[1];
  const int32_t* index = b.in[0].as<int32_t>();
  if (!grad.add) std::memset(grad.view.data, 0, grad.view.bytes());
  dispatch(b.dtype(), [&]<class T>() {
    // Threads share the columns: each sees all indices in order, so duplicates need no atomics.
    constexpr int64_t kBlock = 64;
    parallel_for(columns, kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < count; ++t) {
        T* to = grad.as<T>() + index[t] * columns;
        const T* dy = b.out_grad.as<T>() + t * columns;
        for (int64_t j = begin; j < end; ++j) to[j] += dy[j];
      }
    });
  });
}

}  // namespace sinkgrad::cpu
