// C = op(A) op(B)       d op(A) = dC op(B)^T      d op(B) = op(A)^T dC
// y = x W^T + bias      dx = dy W                 dW = dy^T x           dbias = column sums of dy
#include <algorithm>

#include "core/op.h"
#include "core/parallel.h"
#include "ops/cpu/gemm.h"

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

/// c (n, m) (+)= op(a) op(b) for every batch index, parallel over the batch or inside one product.
template <class T, class Body>
void each_product(int64_t batch, Body body) {
  if (batch == 1) return body(int64_t{0}, parallel_gemm<T>);
  parallel_for(batch, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i, gemm<T>);
  });
}

}  // namespace

void matmul_forward(const Forward& f) {
  const Product p(f.in, f.out, f.attrs);
  dispatch(f.dtype(), [&]<class T>() {
    each_product<T>(p.batch, [&](int64_t i, auto product) {
      product(p.ta, p.tb, p.n, p.m, p.k, T(1), f.in[0].as<T>() + i * p.n * p.k, p.ta ? p.n : p.k, f.in[1].as<T>() + p.b_offset(i), p.tb ? p.k : p.m,
              T(0), f.out.as<T>() + i * p.n * p.m, p.m);
    });
  });
}

void matmul_backward(const Backward& g) {
  const Product p(g.in, g.out, g.attrs);
  dispatch(g.dtype(), [&]<class T>() {
    const T *a = g.in[0].as<T>(), *b = g.in[1].as<T>(), *dc = g.out_grad.as<T>();
    if (const Grad& da = g.in_grad[0]) {
      const T beta = da.add ? T(1) : T(0);
      each_product<T>(p.batch, [&](int64_t i, auto product) {
        T* to = da.as<T>() + i * p.n * p.k;
        const T *bi = b + p.b_offset(i), *dci = dc + i * p.n * p.m;
        if (p.ta)
          product(p.tb, true, p.k, p.n, p.m, T(1), bi, p.tb ? p.k : p.m, dci, p.m, beta, to, p.n);
        else
          product(false, !p.tb, p.n, p.k, p.m, T(1), dci, p.m, bi, p.tb ? p.k : p.m, beta, to, p.k);
      });
    }
    if (const Grad& db = g.in_grad[1]) {
      auto one = [&](int64_t i, auto product) {
        const T beta = db.add || (p.shared && i > 0) ? T(1) : T(0);
        T* to = db.as<T>() + p.b_offset(i);
        const T *ai = a + i * p.n * p.k, *dci = dc + i * p.n * p.m;
        if (p.tb)
          product(true, p.ta, p.m, p.k, p.n, T(1), dci, p.m, ai, p.ta ? p.n : p.k, beta, to, p.k);
        else
          product(!p.ta, false, p.k, p.m, p.n, T(1), ai, p.ta ? p.n : p.k, dci, p.m, beta, to, p.m);
      };
      if (p.shared) {
        for (int64_t i = 0; i < p.batch; ++i) one(i, parallel_gemm<T>);
        if (p.batch == 0 && !db.add) std::fill_n(db.as<T>(), p.k * p.m, T(0));
      } else {
        each_product<T>(p.batch, one);
      }
    }
  });
}

void linear_forward(const Forward& f) {
  const int64_t k = f.in[0].shape[-1], m = f.out.shape[-1], rows = f.out.shape.count(0, f.out.shape.rank() - 1);
  dispatch(f.dtype(), [&]<class T>() {
    T* y = f.out.as<T>();
    if (const View& bias = f.in[2])
      parallel_for(rows, grain_for(m), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) std::copy_n(bias.as<T>(), m, y + i * m);
      });
    parallel_gemm(false, true, rows, m, k, T(1), f.in[0].as<T>(), k, f.in[1].as<T>(), k, f.in[2] ? T(1) : T(0), y, m);
  });
}

void linear_backward(const Backward& g) {
  const int64_t k = g.in[0].shape[-1], m = g.out.shape[-1], rows = g.out.shape.count(0, g.out.shape.rank() - 1);
  dispatch(g.dtype(), [&]<class T>() {
    const T *x = g.in[0].as<T>(), *w = g.in[1].as<T>(), *dy = g.out_grad.as<T>();
    if (const Grad& dx = g.in_grad[0]) parallel_gemm(false, false, rows, k, m, T(1), dy, m, w, k, dx.add ? T(1) : T(0), dx.as<T>(), k);
    if (const Grad& dw = g.in_grad[1]) parallel_gemm(true, false, m, k, rows, T(1), dy, m, x, k, dw.add ? T(1) : T(0), dw.as<T>(), k);
    if (const Grad& db = g.in_grad[2])
      parallel_for(m, 64, [&](int64_t begin, int64_t end) {
        T* to = db.as<T>();
        if (!db.add) std::fill(to + begin, to + end, T(0));
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = begin; j < end; ++j) to[j] += dy[i * m + j];
      });
  });
}

}  // namespace sinkgrad::cpu
