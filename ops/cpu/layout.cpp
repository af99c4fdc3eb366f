// Ops that move elements. Every backward is the inverse move; where elements were dropped the gradient is 0, where they
// were repeated it is the sum, in a fixed order.
#include "ops/cpu/broadcast_walk.h"

namespace sinkgrad::cpu {
namespace {

/// A shape seen from one axis: (outer, length, inner).
struct AroundAxis {
  AroundAxis(const Shape& shape, const Attrs& attrs)
      : axis(shape.axis(attrs.integer("axis"), "layout")),
        outer(shape.count(0, axis)),
        length(shape[axis]),
        inner(shape.count(axis + 1, shape.rank())) {}
  int axis;
  int64_t outer, length, inner;
};

/// Rows of elements, `stride` apart.
template <class T>
struct Rows {
  T* data;
  int64_t stride;
};

/// Copies, or adds, `count` rows of `length` elements.
template <class T>
void move_rows(int64_t count, int64_t length, Rows<const T> from, Rows<T> to, bool add = false) {
  parallel_for(count, grain_for(length), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < length; ++j) put(to.data[i * to.stride + j], from.data[i * from.stride + j], add);
  });
}

/// A shape seen from two axes: (P, A, Q, B, R).
struct AroundTwoAxes {
  AroundTwoAxes(const Shape& s, const Attrs& attrs) {
    const int a = s.axis(attrs.integer("axis_a"), "transpose"), b = s.axis(attrs.integer("axis_b"), "transpose");
    const int first = std::min(a, b), last = std::max(a, b);
    P = s.count(0, first), A = s[first], Q = first == last ? 1 : s.count(first + 1, last), B = first == last ? 1 : s[last],
    R = s.count(last + 1, s.rank());
  }
  int64_t P, A, Q, B, R;
};

/// to (P, B, Q, A, R) = from (P, A, Q, B, R), in square tiles so that both sides stay in cache.
template <class T>
void swap_axes(const AroundTwoAxes& s, const T* from, T* to, bool add) {
  constexpr int64_t kTile = 16;
  const auto [P, A, Q, B, R] = s;
  const int64_t tiles = (B + kTile - 1) / kTile;
  parallel_for(P * tiles, grain_for(kTile * Q * A * R), [&, P = P, A = A, Q = Q, B = B, R = R](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t p = i / tiles, b0 = i % tiles * kTile, b1 = std::min(B, b0 + kTile);
      for (int64_t q = 0; q < Q; ++q)
        for (int64_t a0 = 0; a0 < A; a0 += kTile)
          for (int64_t b = b0; b < b1; ++b)
            for (int64_t a = a0; a < std::min(A, a0 + kTile); ++a)
              for (int64_t r = 0; r < R; ++r) put(to[(((p * B + b) * Q + q) * A + a) * R + r], from[(((p * A + a) * Q + q) * B + b) * R + r], add);
    }
  });
}

}  // namespace

// y = x with two axes swapped    dx = dy with the same axes swapped
void transpose_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() { swap_axes(AroundTwoAxes(f.in[0].shape, f.attrs), f.in[0].as<const T>(), f.out.as<T>(), false); });
}
void transpose_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(),
           [&]<class T>() { swap_axes(AroundTwoAxes(b.out.shape, b.attrs), b.out_grad.as<const T>(), b.in_grad[0].as<T>(), b.in_grad[0].add); });
}

// y = the parts one after the other    dx_k = the slice of dy that part k fills
void concat_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    const AroundAxis whole(f.out.shape, f.attrs);
    T* y = f.out.as<T>();
    for (const View& x : f.in) {
      if (!x) continue;
      const int64_t length = AroundAxis(x.shape, f.attrs).length * whole.inner;
      move_rows<T>(whole.outer, length, {x.as<T>(), length}, {y, whole.length * whole.inner});
      y += length;
    }
  });
}
void concat_backward(const Backward& b) {
  dispatch(b.dtype(), [&]<class T>() {
    const AroundAxis whole(b.out.shape, b.attrs);
    const T* dy = b.out_grad.as<T>();
    for (size_t k = 0; k < b.in.size(); ++k) {
      if (!b.in[k]) continue;
      const int64_t length = AroundAxis(b.in[k].shape, b.attrs).length * whole.inner;
      if (b.in_grad[k]) move_rows<T>(whole.outer, length, {dy, whole.length * whole.inner}, {b.in_grad[k].as<T>(), length}, b.in_grad[k].add);
      dy += length;
    }
  });
}

// y = x[begin..end-1]    dx = dy there, 0 elsewhere
void slice_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    const AroundAxis x(f.in[0].shape, f.attrs), y(f.out.shape, f.attrs);
    move_rows<T>(x.outer, y.length * x.inner, {f.in[0].as<T>() + f.attrs.integer("begin") * x.inner, x.length * x.inner},
                 {f.out.as<T>(), y.length * x.inner});
  });
}
void slice_backward(const Backward& b) {
  const Grad& grad = b.in_grad[0];
  if (!grad) return;
  dispatch(b.dtype(), [&]<class T>() {
    const AroundAxis x(b.in[0].shape, b.attrs), y(b.out.shape, b.attrs);
    const int64_t whole = x.length * x.inner, length = y.length * x.inner, before = b.attrs.integer("begin") * x.inner;
    parallel_for(x.outer, grain_for(whole), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* to = grad.as<T>() + i * whole;
        const T* from = b.out_grad.as<T>() + i * length;
        if (!grad.add) {
          std::fill_n(to, before, T(0));
          std::fill_n(to + before + length, whole - before - length, T(0));
        }
        for (int64_t j = 0; j < length; ++j) put(to[before + j], from[j], grad.add);
      }
    });
  });
}

// y = value, x, value    dx = dy in the middle
void pad_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    const AroundAxis x(f.in[0].shape, f.attrs), y(f.out.shape, f.attrs);
    std::fill_n(f.out.as<T>(), f.out.shape.count(), static_cast<T>(f.attrs.get("value")));
    move_rows<T>(x.outer, x.length * x.inner, {f.in[0].as<T>(), x.length * x.inner},
                 {f.out.as<T>() + f.attrs.integer("before") * x.inner, y.length * x.inner});
  });
}
void pad_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() {
    const AroundAxis x(b.in[0].shape, b.attrs), y(b.out.shape, b.attrs);
    move_rows<T>(x.outer, x.length * x.inner, {b.out_grad.as<T>() + b.attrs.integer("before") * x.inner, y.length * x.inner},
                 {b.in_grad[0].as<T>(), x.length * x.inner}, b.in_grad[0].add);
  });
}

// y_k = x[rows_k]    dx[r] = sum of dy_k over all k with rows_k = r
void gather_rows_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    const int64_t width = f.out.shape.count(1, f.out.shape.rank());
    parallel_for(f.out.shape[0], grain_for(width), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) std::copy_n(f.in[0].as<T>() + f.in[1].as<int32_t>()[k] * width, width, f.out.as<T>() + k * width);
    });
  });
}
void gather_rows_backward(const Backward& b) {
  const Grad& grad = b.in_grad[0];
  if (!grad) return;
  dispatch(b.dtype(), [&]<class T>() {
    const Shape& shape = b.in[0].shape;
    const int64_t count = b.out.shape[0], width = shape.count(1, shape.rank());
    // In parallel over the columns: the rows may repeat.
    parallel_for(width, std::max<int64_t>(16, grain_for(count + shape[0])), [&](int64_t begin, int64_t end) {
      if (!grad.add)
        for (int64_t r = 0; r < shape[0]; ++r) std::fill_n(grad.as<T>() + r * width + begin, end - begin, T(0));
      for (int64_t k = 0; k < count; ++k)
        for (int64_t j = begin; j < end; ++j) grad.as<T>()[b.in[1].as<int32_t>()[k] * width + j] += b.out_grad.as<T>()[k * width + j];
    });
  });
}

// y = x, `times` times along an axis of length 1    dx = the sum of dy along it
void repeat_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() { expand(f.in[0].as<T>(), f.in[0].shape, f.out.as<T>(), f.out.shape, T(1), false); });
}
void repeat_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() { sum_to(b.out_grad.as<T>(), b.out.shape, b.in_grad[0].as<T>(), b.in[0].shape, T(1), b.in_grad[0].add); });
}

}  // namespace sinkgrad::cpu
