// C = op(A) op(B)       d op(A) = dC op(B)^T      d op(B) = op(A)^T dC
// y = x W^T + bias      dx = dy W                 dW = dy^T x           dbias = column sums of dy
// One library product each; the bias is added in the product's own pass. In bf16 precision one more pass over every operand writes
// a rounded copy (6 bytes an element), which the products of a backward share: cuBLAS's own bf16 mode only permits rounding. dbias
// reads dy once: cuBLASLt's fused one cannot add to a gradient and keeps the library from splitting dW's long inner dimension.
#include "cuda/fold.h"
#include "cuda/products.h"

namespace sinkgrad::cuda {
namespace {

constexpr int kGroup = 8;  // bf16 in 16 bytes

/// `to` holds the rows of x (rows, columns) in bf16, each filled up with zeros to whole groups: tensor cores load 16 aligned bytes.
template <bool aligned>
__global__ void round_rows(Span<const float> x, Span<uint32_t> to, int64_t columns, Divisor groups) {
  for (int64_t g = thread_index(); g < to.count / (kGroup / 2); g += thread_count()) {
    const int64_t row = groups.divide(g), first = (g - row * groups.value()) * kGroup, at = row * columns + first;
    float v[kGroup];
    if constexpr (aligned) {
      const Vector<float> low = load_vector(x, at), high = load_vector(x, at + 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        v[i] = low.x[i];
        v[i + 4] = high.x[i];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) v[i] = first + i < columns ? static_cast<float>(x[at + i]) : 0.0f;
    }
    Vector<uint32_t> pairs;
#pragma unroll
    for (int i = 0; i < kGroup / 2; ++i) pairs.x[i] = pack_bf16(v[2 * i], v[2 * i + 1]);
    store_vector(to, g * (kGroup / 2), pairs);
  }
}

/// The matrices (rows, columns) of a view; copies rounded to bf16 where the precision asks for those.
template <class T>
Matrix matrix(const View& v, int64_t rows, int64_t columns, bool transposed, Precision precision, Scratch& scratch) {
  const Matrix plain{v.data, sizeof(T) == 8 ? ElementType::f64 : ElementType::f32, columns, rows * columns, transposed};
  if constexpr (sizeof(T) == 4) {
    if (precision != Precision::bf16 || v.shape.count() == 0) return plain;
    const int64_t groups = (columns + kGroup - 1) / kGroup, total = v.shape.count() / columns * groups;
    const Span<uint32_t> to = scratch.take<uint32_t>(total * (kGroup / 2));
    const bool aligned = columns % kGroup == 0 && reinterpret_cast<uintptr_t>(v.data) % 16 == 0;
    launch(aligned ? KERNEL(round_rows<true>) : KERNEL(round_rows<false>), grid_stride(total), span<const float>(v), to, columns, Divisor(groups));
    return {to.data, ElementType::bf16, groups * kGroup, rows * groups * kGroup, transposed};
  }
  return plain;
}

/// Products that may have no rows, no columns, or no elements to sum over.
template <class T>
void product(const Product& p) {
  const int64_t count = p.batch * p.rows * p.columns;
  if (count == 0) return;
  if (p.inner > 0)
    multiply(p);
  else if (p.beta == 0)
    fill(Span<T>{static_cast<T*>(p.c), count}, T(0));
}

/// Sizes of a batch of products; a 2-D second operand is shared by the batch.
struct Sizes {
  Sizes(std::span<const View> in, const View& out, const Attrs& attrs)
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
  template <class T>
  Matrix a(const View& v, Precision p, Scratch& s) const {
    return matrix<T>(v, ta ? k : n, ta ? n : k, ta, p, s);
  }
  template <class T>
  Matrix b(const View& v, Precision p, Scratch& s) const {
    Matrix each = matrix<T>(v, tb ? m : k, tb ? k : m, tb, p, s);
    if (shared) each.step = 0;
    return each;
  }
  bool ta, tb, shared;
  int64_t batch, n, m, k;
};

void matmul_forward(const Forward& f) {
  const Sizes s(f.in, f.out, f.attrs);
  dispatch(f.dtype(), [&]<class T>() {
    Scratch scratch;
    const Matrix a = s.a<T>(f.in[0], f.precision, scratch), b = s.b<T>(f.in[1], f.precision, scratch);
    product<T>({s.n, s.m, s.k, a, b, f.out.data, 0, s.batch, f.precision});
  });
}

void matmul_backward(const Backward& g) {
  const Sizes s(g.in, g.out, g.attrs);
  const int64_t n = s.n, m = s.m, k = s.k;
  dispatch(g.dtype(), [&]<class T>() {
    Scratch scratch;
    const Matrix dc = matrix<T>(g.out_grad, n, m, false, g.precision, scratch);
    if (const Grad& da = g.in_grad[0]) {
      const Matrix b = s.b<T>(g.in[1], g.precision, scratch);
      const double beta = da.add ? 1 : 0;
      if (s.ta)
        product<T>({k, n, m, b, dc.flipped(), da.view.data, beta, s.batch, g.precision});
      else
        product<T>({n, k, m, dc, b.flipped(), da.view.data, beta, s.batch, g.precision});
    }
    if (const Grad& db = g.in_grad[1]) {
      const Matrix a = s.a<T>(g.in[0], g.precision, scratch);
      auto put = [&](int64_t inner, const Matrix& ai, const Matrix& dci, int64_t batch, bool add) {
        if (s.tb)
          product<T>({m, k, inner, dci.flipped(), ai, db.view.data, add ? 1.0 : 0.0, batch, g.precision});
        else
          product<T>({k, m, inner, ai.flipped(), dci, db.view.data, add ? 1.0 : 0.0, batch, g.precision});
      };
      if (!s.shared) return put(n, a, dc, s.batch, db.add);
      if (s.batch == 0) return put(0, a, dc, 1, db.add);
      for (int64_t i = 0; i < s.batch; ++i) put(n, a.at(i), dc.at(i), 1, db.add || i > 0);  // one after the other: a fixed order of adding
    }
  });
}

void linear_forward(const Forward& f) {
  const int64_t k = f.in[0].shape[-1], m = f.out.shape[-1], rows = f.out.shape.count(0, f.out.shape.rank() - 1);
  if (rows * m == 0) return;
  dispatch(f.dtype(), [&]<class T>() {
    Scratch scratch;
    const Matrix x = matrix<T>(f.in[0], rows, k, false, f.precision, scratch), w = matrix<T>(f.in[1], m, k, true, f.precision, scratch);
    Product p{rows, m, k, x, w, f.out.data, 0, 1, f.precision};
    if (const View& bias = f.in[2]) {
      if (k > 0 && multiply_and_add_bias(p, bias.data)) return;
      expand(span<const T>(bias), bias.shape, GradSpan<T>{span<T>(f.out)}, f.out.shape, T(1));
      p.beta = 1;
    }
    product<T>(p);
  });
}

void linear_backward(const Backward& g) {
  const int64_t k = g.in[0].shape[-1], m = g.out.shape[-1], rows = g.out.shape.count(0, g.out.shape.rank() - 1);
  dispatch(g.dtype(), [&]<class T>() {
    Scratch scratch;
    const Grad &dx = g.in_grad[0], &dw = g.in_grad[1], &db = g.in_grad[2];
    if (dx || dw) {
      const Matrix dy = matrix<T>(g.out_grad, rows, m, false, g.precision, scratch);
      if (dx) {
        const Matrix w = matrix<T>(g.in[1], m, k, false, g.precision, scratch);
        product<T>({rows, k, m, dy, w, dx.view.data, dx.add ? 1.0 : 0.0, 1, g.precision});
      }
      if (dw) {
        const Matrix x = matrix<T>(g.in[0], rows, k, false, g.precision, scratch);
        product<T>({m, k, rows, dy.flipped(), x, dw.view.data, dw.add ? 1.0 : 0.0, 1, g.precision});
      }
    }
    if (db) sum_to(span<const T>(g.out_grad), g.out.shape, span<T>(db), db.view.shape, T(1));
  });
}

[[maybe_unused]] const bool registered =
    register_cuda_kernels("matmul", {matmul_forward, matmul_backward}) && register_cuda_kernels("linear", {linear_forward, linear_backward});

}  // namespace
}  // namespace sinkgrad::cuda
