// Shape: a heap-free list of at most six dimensions. Every tensor is dense and row-major; there are no strides.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>
#include <string>

#include "core/check.h"

namespace sinkgrad {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() {}  // not defaulted: dimensions beyond the rank stay unwritten, shapes are copied by the million
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims) {
    for (int64_t d : dims) push_back(d);
  }

  int rank() const { return rank_; }
  /// Dimension i; negative i counts from the end.
  int64_t operator[](int i) const { return dims_[static_cast<size_t>(i < 0 ? rank_ + i : i)]; }
  void set(int i, int64_t d) { dims_[static_cast<size_t>(i < 0 ? rank_ + i : i)] = d; }
  void push_back(int64_t d) {
    require<ShapeError>(rank_ < kMaxRank, "shape: at most ", kMaxRank, " dimensions are supported");
    require<ShapeError>(d >= 0, "shape: dimensions must not be negative, got ", d);
    dims_[static_cast<size_t>(rank_++)] = d;
  }
  /// Number of elements; 1 for rank 0.
  int64_t count() const { return count(0, rank_); }
  /// Product of dimensions begin .. end-1.
  int64_t count(int begin, int end) const {
    int64_t n = 1;
    for (int i = begin; i < end; ++i) n *= dims_[static_cast<size_t>(i)];
    return n;
  }
  /// `axis` with negative values counted from the end; throws ShapeError naming `op` when out of range.
  int axis(int64_t axis, const char* op) const {
    require<ShapeError>(axis >= -rank_ && axis < rank_, op, ": axis ", axis, " is out of range, got ", *this);
    return static_cast<int>(axis < 0 ? axis + rank_ : axis);
  }
  bool operator==(const Shape& other) const {
    bool same = rank_ == other.rank_;
    for (size_t i = 0; same && i < static_cast<size_t>(rank_); ++i) same = dims_[i] == other.dims_[i];
    return same;
  }

  std::string str() const { return cat(*this); }
  friend std::ostream& operator<<(std::ostream& out, const Shape& s) {
    out << '(';
    for (int i = 0; i < s.rank_; ++i) out << (i ? "," : "") << s[i];
    return out << ')';
  }

 private:
  std::array<int64_t, kMaxRank> dims_;  // beyond the rank without meaning
  int rank_ = 0;
};

}  // namespace sinkgrad
