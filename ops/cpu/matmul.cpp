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

// A small weight: threads share the rows, each with sums of its own, which are added in order; otherwise they share each product. By blocks of rows,
// so that dy, which all three products read, comes from memory once.
void linear_backward(const Backward& g) {
  constexpr int64_t kBlock = 1024, kElements = 1 << 18, kSmall = 1 << 16, kParts = 8, kLeastRows = 192;
  const int64_t k = g.in[0].shape[-1], m = g.out.shape[-1], rows = g.out.shape.count(0, g.out.shape.rank() - 1);
  const Grad &dx = g.in_grad[0], &dw = g.in_grad[1], &db = g.in_grad[2];
  dispatch(g.dtype(), [&]<class T>() {
    // Of rows begin .. end-1. The weight's and the bias's gradients are stored or added.
    auto share = [&](int64_t begin, int64_t end, T* to_weight, bool add_weight, T* to_bias, bool add_bias) {
      const int64_t n = end - begin;
      const T *x = g.in[0].as<T>() + begin * k, *w = g.in[1].as<T>(), *dy = g.out_grad.as<T>() + begin * m;
      if (dx) gemm(false, false, n, k, m, T(1), dy, m, w, k, dx.add ? T(1) : T(0), dx.as<T>() + begin * k, k, g.precision);
      if (dw) gemm(true, false, m, k, n, T(1), dy, m, x, k, add_weight ? T(1) : T(0), to_weight, k, g.precision);
      if (!db) return;
      ScratchScope scratch;
      T* sums = scratch.take<T>(m);
      sum_rows(n, m, sums, [&](int64_t r, T* s) { vector_math<T>().axpy(T(1), dy + r * m, s, m); });
      for (int64_t j = 0; j < m; ++j) put(to_bias[j], sums[j], add_bias);
    };
    T *to_weight = dw ? dw.as<T>() : nullptr, *to_bias = db ? db.as<T>() : nullptr;
    const int64_t parts = m * k <= kSmall ? std::min(kParts, rows / kLeastRows) : 1;
    if (parts > 1) {
      ScratchScope scratch;
      const int64_t length = m * k + m;
      T* sums = scratch.take<T>(parts * length);
      parallel_chunks(parts, [&](int64_t part) {
        T* own = sums + part * length;
        share(part * rows / parts, (part + 1) * rows / parts, own, false, own + m * k, false);
      });
      auto join = [&](const T* from, T* to, int64_t count, bool add) {
        parallel_for(count, grain_for(parts), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            T sum = from[i];
            for (int64_t part = 1; part < parts; ++part) sum += from[part * length + i];
            put(to[i], sum, add);
          }
        });
      };
      if (dw) join(sums, to_weight, m * k, dw.add);
      if (db) join(sums + m * k, to_bias, m, db.add);
      return;
    }
    const int64_t block = std::max(kBlock, kElements / std::max<int64_t>(1, m));
    for (int64_t begin = 0; begin == 0 || begin < rows; begin += block)
      share(begin, std::min(rows, begin + block), to_weight, dw.add || begin > 0, to_bias, db.add || begin > 0);
  });
}

}  // namespace sinkgrad::cpu
