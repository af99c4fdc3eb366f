// Pieces of shape rules that several ops share. A rule is a template over the op's name, so that its errors can say it.
#pragma once
#include <algorithm>

#include "core/op.h"

namespace sinkgrad {

/// A string literal as a template argument: infer<"add">.
template <size_t N>
struct OpName {
  char text[N];
  constexpr OpName(const char (&literal)[N]) { std::copy_n(literal, N, text); }
};

/// Throws ShapeError unless x holds floats (or is absent).
inline void require_float(const char* op, const View& x) {
  require<ShapeError>(is_float(x.dtype), op, ": the input must hold floats, got ", name_of(x.dtype), " of shape ", x.shape);
}

/// The rule of elementwise ops: a float input of any shape.
template <OpName op>
Signature same_shape(std::span<const View> in, const Attrs&) {
  require_float(op.text, in[0]);
  return in[0].shape;
}

/// True where `axis` is reduced: bit k of the attribute "axes" stands for axis k, and no bit for all axes.
inline bool is_reduced(const Attrs& attrs, int axis) {
  const int64_t axes = attrs.integer("axes");
  return axes == 0 || (axes >> axis & 1) != 0;
}

/// `shape` with length 1 in every reduced axis.
inline Shape reduced_shape(Shape shape, const Attrs& attrs) {
  for (int i = 0; i < shape.rank(); ++i)
    if (is_reduced(attrs, i)) shape.set(i, 1);
  return shape;
}

/// How many elements of `shape` one element of the reduced shape stands for.
inline int64_t reduced_count(const Shape& shape, const Attrs& attrs) {
  int64_t n = 1;
  for (int i = 0; i < shape.rank(); ++i) n *= is_reduced(attrs, i) ? shape[i] : 1;
  return n;
}

}  // namespace sinkgrad
