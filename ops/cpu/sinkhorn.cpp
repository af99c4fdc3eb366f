// The loop over matrices; the mathematics is in sinkhorn_matrix.h.
#include "ops/cpu/sinkhorn.h"

#include "core/op.h"

namespace sinkgrad::cpu {
namespace {

/// body(i, b): matrix i and its batch entry, each on one thread.
template <class Body>
void each_matrix(const Shape& s, int64_t passes, Body body) {
  const int64_t count = s.count(0, s.rank() - 2), per_batch = s.rank() == 2 ? 1 : std::max<int64_t>(1, s.count(1, s.rank() - 2));
  parallel_for(count, grain_for(s[-2] * s[-1] * passes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i, i / per_batch);
  });
}

}  // namespace

void sinkhorn_forward(const Forward& f) {
  const Shape& s = f.in[0].shape;
  const SinkhornTask task = sinkhorn_task(f.attrs, s[-2], s[-1]);
  dispatch(f.dtype(), [&]<class T>() {
    each_matrix(s, task.iterations, [&](int64_t i, int64_t b) {
      ScratchScope scratch;
      const int64_t size = task.n * task.m;
      T* x = f.out.as<T>() + i * size;
      std::copy_n(f.in[0].as<T>() + i * size, size, x);
      exclude_masked(f.in.subspan(1), b, task.n, task.m, x);
      SinkhornMatrix<T>(task, x, scratch).forward(sinkhorn_state<T>(f.saved, task, i));
    });
  });
}

void sinkhorn_backward(const Backward& g) {
  if (!g.in_grad[0]) return;
  const Shape& s = g.in[0].shape;
  const SinkhornTask task = sinkhorn_task(g.attrs, s[-2], s[-1]);
  dispatch(g.dtype(), [&]<class T>() {
    each_matrix(s, task.iterations + 2, [&](int64_t i, int64_t b) {
      ScratchScope scratch;
      const int64_t size = task.n * task.m;
      T *x = scratch.take<T>(size), *p = scratch.take<T>(size), *d = scratch.take<T>(size);
      std::copy_n(g.in[0].as<T>() + i * size, size, x);
      std::copy_n(g.out_grad.as<T>() + i * size, size, d);
      exclude_masked(g.in.subspan(1), b, task.n, task.m, x);
      SinkhornMatrix<T> matrix(task, x, scratch);
      const SinkhornState<T> state = sinkhorn_state<T>(g.saved, task, i);
      matrix.plan(state, p);
      matrix.backward(state, p, d, scratch);
      for (int64_t k = 0; k < size; ++k) put(g.in_grad[0].as<T>()[i * size + k], d[k], g.in_grad[0].add);
    });
  });
}

}  // namespace sinkgrad::cpu
