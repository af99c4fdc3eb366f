// Ops that move elements. Every backward is the inverse move; where elements were dropped the gradient is 0, where they were repeated it
// is the sum, in a fixed order. Each reads what it moves once and writes its output once.
#include "cuda/fold.h"
#include "cuda/rows.h"

namespace sinkgrad::cuda {
namespace {

/// A shape seen from one axis: (outer, length, inner).
struct AroundAxis {
  AroundAxis(const Shape& shape, const Attrs& attrs) {
    const int axis = shape.axis(attrs.integer("axis"), "layout");
    outer = shape.count(0, axis), length = shape[axis], inner = shape.count(axis + 1, shape.rank());
  }
  int64_t outer, length, inner;
};

/// Where rows lie: the first element of the first one, and the distance from one to the next.
struct Rows {
  int64_t begin, stride;
};

/// Copies, or adds, `count` rows of `length` elements.
template <class T>
void move_rows(int64_t count, int64_t length, const Span<const T>& x, const Rows& from, const GradSpan<T>& y, const Rows& to) {
  if (count == 0 || length == 0) return;
  Walk<2> walk;
  walk.add(length, {1, 1});
  walk.add(count, {to.stride, from.stride});
  auto after = [](const auto& data, int64_t begin) { return data.part(begin, data.count - begin); };
  copy<T>(walk, after(x, from.begin), {after(y.data, to.begin), y.add});
}

/// Rows of y: elements low .. high-1 are those of a row of x, the others `value`. All counted in packs.
template <class T, int width>
__global__ void frame_kernel(Span<const T> x, T value, Span<T> y, Divisor length, int64_t low, int64_t high) {
#pragma unroll 1
  for (int64_t i = thread_index(); i < y.count / width; i += thread_count()) {
    const int64_t row = length.divide(i), j = i - row * length.value();
    Pack<T, width> p = each<Pack<T, width>>([=] { return value; });
    if (j >= low && j < high) p = load_pack<width>(x, (row * (high - low) + j - low) * width);
    put_pack(GradSpan<T>{y}, i * width, p);
  }
}
template <class T>
void frame_rows(const Span<const T>& x, T value, const Span<T>& y, int64_t length, int64_t low, int64_t high) {
  constexpr int n = Vector<T>::kSize;
  with_width<T>(aligned(x, y) && length % n == 0 && low % n == 0 && high % n == 0, [&]<int width>() {
    launch(KERNEL(frame_kernel<T, width>), grid_stride(y.count / width), x, value, y, Divisor(length / width), low / width, high / width);
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

constexpr int kTile = 32, kTileRows = 8;

/// y (P, B, Q, A) = x (P, A, Q, B): a block turns a square tile, so that both sides are read and written along their last axis.
template <class T>
__global__ void transpose_tiles_kernel(AroundTwoAxes s, unsigned tiles_a, unsigned tiles_b, Span<const T> x, GradSpan<T> y) {
  STATIC_SHARED(T, tile, kTile * (kTile + 1));  // an odd stride: neighbours in a column lie in different banks
  const unsigned t = blockIdx.x / tiles_b, matrix = t / tiles_a;
  const int64_t a0 = int64_t{t - matrix * tiles_a} * kTile, b0 = int64_t{blockIdx.x - t * tiles_b} * kTile;
  const auto Q = static_cast<unsigned>(s.Q), p = matrix / Q, q = matrix - p * Q;
  const int lane = lane_index(), warp = warp_index();
#pragma unroll
  for (int i = 0; i < kTile; i += kTileRows) {
    const int64_t a = a0 + warp + i, b = b0 + lane;
    if (a < s.A && b < s.B) tile[(warp + i) * (kTile + 1) + lane] = x[((p * s.A + a) * s.Q + q) * s.B + b];
  }
  block_sync();
#pragma unroll
  for (int i = 0; i < kTile; i += kTileRows) {
    const int64_t a = a0 + lane, b = b0 + warp + i;
    if (a < s.A && b < s.B) y.put(((p * s.B + b) * s.Q + q) * s.A + a, tile[lane * (kTile + 1) + warp + i]);
  }
}

/// y (P, B, Q, A, R) = x (P, A, Q, B, R)
template <class T>
void swap_axes(const AroundTwoAxes& s, const Span<const T>& x, const GradSpan<T>& y) {
  const auto [P, A, Q, B, R] = s;
  if (R == 1 && std::min(A, B) >= kTile / 2) {
    const int64_t tiles_a = (A + kTile - 1) / kTile, tiles_b = (B + kTile - 1) / kTile;
    launch(KERNEL(transpose_tiles_kernel<T>), {.blocks = P * Q * tiles_a * tiles_b, .threads = kTileRows * kWarp}, s, static_cast<unsigned>(tiles_a),
           static_cast<unsigned>(tiles_b), x, y);
    return;
  }
  Walk<2> walk;
  walk.add(R, {1, 1});
  walk.add(A, {R, Q * B * R});
  walk.add(Q, {A * R, B * R});
  walk.add(B, {Q * A * R, R});
  walk.add(P, {B * Q * A * R, A * Q * B * R});
  copy(walk, x, y);
}

// y = x with two axes swapped    dx = dy with the same axes swapped
void transpose_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() { swap_axes<T>(AroundTwoAxes(f.in[0].shape, f.attrs), span<const T>(f.in[0]), {span<T>(f.out)}); });
}
void transpose_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() { swap_axes<T>(AroundTwoAxes(b.out.shape, b.attrs), span<const T>(b.out_grad), span<T>(b.in_grad[0])); });
}

// y = the parts one after the other    dx_k = the slice of dy that part k fills
void concat_forward(const Forward& f) {
  const AroundAxis y(f.out.shape, f.attrs);
  const int64_t stride = y.length * y.inner;
  dispatch(f.dtype(), [&]<class T>() {
    int64_t begin = 0;
    for (const View& x : f.in) {
      if (!x) continue;
      const int64_t length = AroundAxis(x.shape, f.attrs).length * y.inner;
      move_rows<T>(y.outer, length, span<const T>(x), {0, length}, {span<T>(f.out)}, {begin, stride});
      begin += length;
    }
  });
}
void concat_backward(const Backward& b) {
  const AroundAxis y(b.out.shape, b.attrs);
  const int64_t stride = y.length * y.inner;
  dispatch(b.dtype(), [&]<class T>() {
    int64_t begin = 0;
    for (size_t k = 0; k < b.in.size(); ++k) {
      if (!b.in[k]) continue;
      const int64_t length = AroundAxis(b.in[k].shape, b.attrs).length * y.inner;
      if (b.in_grad[k]) move_rows<T>(y.outer, length, span<const T>(b.out_grad), {begin, stride}, span<T>(b.in_grad[k]), {0, length});
      begin += length;
    }
  });
}

// y = x[begin..end-1]    dx = dy there, 0 elsewhere
void slice_forward(const Forward& f) {
  const AroundAxis x(f.in[0].shape, f.attrs), y(f.out.shape, f.attrs);
  const int64_t length = y.length * y.inner;
  dispatch(f.dtype(), [&]<class T>() {
    move_rows<T>(x.outer, length, span<const T>(f.in[0]), {f.attrs.integer("begin") * x.inner, x.length * x.inner}, {span<T>(f.out)}, {0, length});
  });
}
void slice_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const AroundAxis x(b.in[0].shape, b.attrs), y(b.out.shape, b.attrs);
  const int64_t begin = b.attrs.integer("begin") * x.inner, length = y.length * y.inner, stride = x.length * x.inner;
  dispatch(b.dtype(), [&]<class T>() {
    if (b.in_grad[0].add)
      move_rows<T>(x.outer, length, span<const T>(b.out_grad), {0, length}, span<T>(b.in_grad[0]), {begin, stride});
    else
      frame_rows<T>(span<const T>(b.out_grad), T(0), span<T>(b.in_grad[0].view), stride, begin, begin + length);
  });
}

// y = value, x, value    dx = dy in the middle
void pad_forward(const Forward& f) {
  const AroundAxis x(f.in[0].shape, f.attrs), y(f.out.shape, f.attrs);
  const int64_t begin = f.attrs.integer("before") * x.inner;
  dispatch(f.dtype(), [&]<class T>() {
    frame_rows<T>(span<const T>(f.in[0]), static_cast<T>(f.attrs.get("value")), span<T>(f.out), y.length * y.inner, begin,
                  begin + x.length * x.inner);
  });
}
void pad_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const AroundAxis x(b.in[0].shape, b.attrs), y(b.out.shape, b.attrs);
  const int64_t length = x.length * x.inner;
  dispatch(b.dtype(), [&]<class T>() {
    move_rows<T>(x.outer, length, span<const T>(b.out_grad), {b.attrs.integer("before") * x.inner, y.length * y.inner}, span<T>(b.in_grad[0]),
                 {0, length});
  });
}

// y_k = x[rows_k]    dx[r] = sum of dy_k over all k with rows_k = r
void gather_rows_forward(const Forward& f) {
  const Shape& x = f.in[0].shape;
  dispatch(f.dtype(),
           [&]<class T>() { gather_rows(span<const T>(f.in[0]), x[0], x.count(1, x.rank()), span<const int32_t>(f.in[1]), span<T>(f.out)); });
}
void gather_rows_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  const Shape& x = b.in[0].shape;
  dispatch(b.dtype(), [&]<class T>() {
    scatter_rows_sum(span<const T>(b.out_grad), span<const int32_t>(b.in[1]), x[0], x.count(1, x.rank()), span<T>(b.in_grad[0]));
  });
}

// y = x, `times` times along an axis of length 1    dx = the sum of dy along it
void repeat_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() { expand<T>(span<const T>(f.in[0]), f.in[0].shape, {span<T>(f.out)}, f.out.shape, T(1)); });
}
void repeat_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() { sum_to<T>(span<const T>(b.out_grad), b.out.shape, span<T>(b.in_grad[0]), b.in[0].shape, T(1)); });
}

[[maybe_unused]] const bool registered =
    register_cuda_kernels("transpose", {transpose_forward, transpose_backward}) &&
    register_cuda_kernels("concat", {concat_forward, concat_backward}) && register_cuda_kernels("slice", {slice_forward, slice_backward}) &&
    register_cuda_kernels("pad", {pad_forward, pad_backward}) && register_cuda_kernels("gather_rows", {gather_rows_forward, gather_rows_backward}) &&
    register_cuda_kernels("repeat", {repeat_forward, repeat_backward});

}  // namespace
}  // namespace sinkgrad::cuda
