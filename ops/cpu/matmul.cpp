// C = op(A) op(B)       d op(A) = dC op(B)^T      d op(B) = op(A)^T dC
// y = x W^T + bias      dx = dy W                 dW = dy^T x           dbias = column sums of dy
#include <algorithm>

#include "core/op.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/sum_rows.h"
#include "ops/cpu/vector.h"

namespace sinkgrad::cpu {
namespace {

/// Sizes of a batch of products; a 2-D second operand is shared by the batch.
struct Product {
  Product(std::span<const View> in, const View& out, const Attrs& attrs)
      : ta(attrs.flag("transpose_a")),
        tb(attrs.flag("transpose_b")),
        shared(in[1].shape.rank() == 2),
        batch(out.shape.count(0, out.shape.rank() - 2)),
        n(out.shape[-2]),
        m(out.shape[-1]),
        k(in[0].shape[ta ? -2 : -1]) {
    if (shared && !ta) {  // the batch is just more rows
      n *= batch;
      batch = 1;
    }
  }
  int64_t b_offset(int64_t i) const { return shared ? 0 : i * k * m; }
  bool ta, tb, shared;
  int64_t batch, n, m, k;
};

/// body(i) for every batch index, parallel over the batch or, where there is but one, inside its product.
template <class Body>
void each_product(int64_t batch, Body body) {
  parallel_for(batch, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace

void matmul_forward(const Forward& f) {
  const Product p(f.in, f.out, f.attrs);
  dispatch(f.dtype(), [&]<class T>() {
    each_product(p.batch, [&](int64_t i) {
      gemm(p.ta, p.tb, p.n, p.m, p.k, T(1), f.in[0].as<T>() + i * p.n * p.k, p.ta ? p.n : p.k, f.in[1].as<T>() + p.b_offset(i), p.tb ? p.k : p.m,
           T(0), f.out.as<T>() + i * p.n * p.m, p.m, f.precision);
    });
  });
}

void matmul_backward(const Backward& g) {
  const Product p(g.in, g.out, g.attrs);
  dispatch(g.dtype(), [&]<class T>() {
    const T *a = g.in[0].as<T>(), *b = g.in[1].as<T>(), *dc = g.out_grad.as<T>();
    if (const Grad& da = g.in_grad[0]) {
      const T beta = da.add ? T(1) : T(0);
      each_product(p.batch, [&](int64_t i) {
        T* to = da.as<T>() + i * p.n * p.k;
        const T *bi = b + p.b_offset(i), *dci = dc + i * p.n * p.m;
        if (p.ta)
          gemm(p.tb, true, p.k, p.n, p.m, T(1), bi, p.tb ? p.k : p.m, dci, p.m, beta, to, p.n, g.precision);
        else
          gemm(false, !p.tb, p.n, p.k, p.m, T(1), dci, p.m, bi, p.tb ? p.k : p.m, beta, to, p.k, g.precision);
      });
    }
    if (const Grad& db = g.in_grad[1]) {
      auto one = [&](int64_t i) {
        const T beta = db.add || (p.shared && i > 0) ? T(1) : T(0);
        T* to = db.as<T>() + p.b_offset(i);
        const T *ai = a + i * p.n * p.k, *dci = dc + i * p.n * p.m;
        if (p.tb)
          gemm(true, p.ta, p.m, p.k, p.n, T(1), dci, p.m, ai, p.ta ? p.n : p.k, beta, to, p.k, g.precision);
        else
          gemm(!p.ta, false, p.k, p.m, p.n, T(1), ai, p.ta ? p.n : p.k, dci, p.m, beta, to, p.m, g.precision);
      };
      if (p.shared) {
        for (int64_t i = 0; i < p.batch; ++i) one(i);
        if (p.batch == 0 && !db.add) std::fill_n(db.as<T>(), p.k * p.m, T(0));
      } else {
        each_product(p.batch, one);
      }
    }
  });
}

void linear_forward(const Forward& f) {
  const int64_t k = f.in[0].shape[-1], m = f.out.shape[-1], rows = f.out.shape.count(0, f.out.shape.rank() - 1);
  dispatch(f.dtype(), [&]<class T>() {
    gemm<T>(false, true, rows, m, k, T(1), f.in[0].as<T>(), k, f.in[1].as<T>(), k, T(0), f.out.as<T>(), m, f.precision, f.in[2].as<T>());
  });
}

// By blocks of rows, so that dy, which all three products read, comes from memory once.
void linear_backward(const Backward& g) {
  constexpr int64_t kBlock = 1024, kElements = 1 << 18;
  const int64_t k = g.in[0].shape[-1], m = g.out.shape[-1], block = std::max(kBlock, kElements / std::max<int64_t>(1, m)),
                rows = g.out.shape.count(0, g.out.shape.rank() - 1);
  const Grad &dx = g.in_grad[0], &dw = g.in_grad[1], &db = g.in_grad[2];
  dispatch(g.dtype(), [&]<class T>() {
    ScratchScope scratch;
    T* sums = scratch.take<T>(m);
    for (int64_t begin = 0; begin == 0 || begin < rows; begin += block) {
      const int64_t n = std::min(block, rows - begin);
      const T *x = g.in[0].as<T>() + begin * k, *w = g.in[1].as<T>(), *dy = g.out_grad.as<T>() + begin * m;
      const bool first = begin == 0;
      if (dx) gemm(false, false, n, k, m, T(1), dy, m, w, k, dx.add ? T(1) : T(0), dx.as<T>() + begin * k, k, g.precision);
      if (dw) gemm(true, false, m, k, n, T(1), dy, m, x, k, dw.add || !first ? T(1) : T(0), dw.as<T>(), k, g.precision);
      if (!db) continue;
      sum_rows(n, m, sums, [&](int64_t r, T* s) { vector_math<T>().axpy(T(1), dy + r * m, s, m); });
      for (int64_t j = 0; j < m; ++j) put(db.as<T>()[j], sums[j], db.add || !first);
    }
  });
}

}  // namespace sinkgrad::cpu
