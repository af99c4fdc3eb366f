// softmax:      y = exp(x - max) / sum     dx = y o (dy - <y, dy>)
// log_softmax:  y = x - logsumexp(x)       dx = dy - exp(y) sum(dy)
#include <cmath>
#include <limits>

#include "core/op.h"
#include "core/parallel.h"
#include "ops/broadcast.h"
#include "ops/cpu/lines.h"
#include "ops/cpu/vector.h"

namespace sinkgrad::cpu {
namespace {

template <class T>
constexpr T kMinusInfinity = -std::numeric_limits<T>::infinity();

/// body(lines, i, x, masked): the elements of every line, -inf where masked, and the mask itself or null.
template <class T, class Body>
void each_line(std::span<const View> in, const Attrs& attrs, Body body) {
  const Shape& shape = in[0].shape;
  const Lines lines(shape, shape.axis(attrs.integer("axis"), "softmax"));
  const BroadcastStrides mask(in[1] ? in[1].shape : Shape{}, shape);
  parallel_for(lines.count, grain_for(lines.length * 4), [&](int64_t begin, int64_t end) {
    ScratchScope scratch;
    T* x = scratch.take<T>(lines.length);
    auto* masked = in[1] ? scratch.take<int32_t>(lines.length) : nullptr;
    for (int64_t i = begin; i < end; ++i) {
      const T* from = in[0].as<T>() + lines.offset(i);
      for (int64_t k = 0; k < lines.length; ++k) {
        if (masked) masked[k] = in[1].as<int32_t>()[mask.offset(lines.offset(i) + k * lines.stride)];
        x[k] = masked && masked[k] ? kMinusInfinity<T> : from[k * lines.stride];
      }
      body(lines, i, x, masked);
    }
  });
}

}  // namespace

void softmax_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    each_line<T>(f.in, f.attrs, [&](const Lines& lines, int64_t i, T* x, const int32_t*) {
      const T top = vector_math<T>().max(x, lines.length);
      const T total = top == kMinusInfinity<T> ? T(1) : vector_math<T>().exp_shift(x, -top, x, lines.length);
      T* y = f.out.as<T>() + lines.offset(i);
      for (int64_t k = 0; k < lines.length; ++k) y[k * lines.stride] = top == kMinusInfinity<T> ? T(0) : x[k] / total;
    });
  });
}

void softmax_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() {
    each_line<T>(b.in, b.attrs, [&](const Lines& lines, int64_t i, T* dx, const int32_t* masked) {
      const T *y = b.out.as<T>() + lines.offset(i), *dy = b.out_grad.as<T>() + lines.offset(i);
      T inner = 0;
      for (int64_t k = 0; k < lines.length; ++k) inner += masked && masked[k] ? T(0) : y[k * lines.stride] * dy[k * lines.stride];
      for (int64_t k = 0; k < lines.length; ++k) dx[k] = masked && masked[k] ? T(0) : y[k * lines.stride] * (dy[k * lines.stride] - inner);
      for (int64_t k = 0; k < lines.length; ++k) put(b.in_grad[0].as<T>()[lines.offset(i) + k * lines.stride], dx[k], b.in_grad[0].add);
    });
  });
}

void log_softmax_forward(const Forward& f) {
  dispatch(f.dtype(), [&]<class T>() {
    each_line<T>(f.in, f.attrs, [&](const Lines& lines, int64_t i, const T* x, const int32_t*) {
      ScratchScope scratch;
      const T top = vector_math<T>().max(x, lines.length);
      const T lse =
          top == kMinusInfinity<T> ? T(0) : top + std::log(vector_math<T>().exp_shift(x, -top, scratch.take<T>(lines.length), lines.length));
      T* y = f.out.as<T>() + lines.offset(i);
      for (int64_t k = 0; k < lines.length; ++k) y[k * lines.stride] = x[k] - lse;
    });
  });
}

void log_softmax_backward(const Backward& b) {
  if (!b.in_grad[0]) return;
  dispatch(b.dtype(), [&]<class T>() {
    each_line<T>(b.in, b.attrs, [&](const Lines& lines, int64_t i, const T* x, const int32_t*) {
      const T *y = b.out.as<T>() + lines.offset(i), *dy = b.out_grad.as<T>() + lines.offset(i);
      T* dx = b.in_grad[0].as<T>() + lines.offset(i);
      T total = 0;
      for (int64_t k = 0; k < lines.length; ++k) total += x[k] == kMinusInfinity<T> ? T(0) : dy[k * lines.stride];
      for (int64_t k = 0; k < lines.length; ++k) {
        const bool excluded = x[k] == kMinusInfinity<T>;
        put(dx[k * lines.stride], excluded ? T(0) : dy[k * lines.stride] - std::exp(y[k * lines.stride]) * total, b.in_grad[0].add);
      }
    });
  });
}

}  // namespace sinkgrad::cpu
