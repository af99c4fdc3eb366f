// The op contract. An op is one OpDef; Tape::apply takes nothing else, and an OpDef without samples to check it is refused.
// The kernels of an op live in ops/cpu/ and cuda/ under the same file name as the op in ops/.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "core/rng.h"
#include "core/tensor.h"

namespace sinkgrad {

class Tape;
struct Var;

/// A named number that steers an op, such as {"axis", -1}. Names must be string literals.
struct Attr {
  const char* name;
  double value;
};

/// The attributes of one application of an op.
class Attrs {
 public:
  static constexpr size_t kMax = 14;
  Attrs() = default;
  Attrs(std::initializer_list<Attr> list) : Attrs(std::span(list.begin(), list.size())) {}
  explicit Attrs(std::span<const Attr> list) {
    for (const Attr& a : list) add(a);
  }
  void add(Attr a) {
    require(size_ < kMax, "attributes: at most ", kMax, " are supported, '", a.name, "' is one too many");
    items_[size_++] = a;
  }
  /// The value of `name`; throws if the op was applied without it.
  double get(const char* name) const;
  double get(const char* name, double otherwise) const;
  int64_t integer(const char* name) const { return static_cast<int64_t>(get(name)); }
  bool flag(const char* name) const { return get(name, 0) != 0; }
  std::span<const Attr> items() const { return {items_.data(), size_}; }

 private:
  std::array<Attr, kMax> items_;  // beyond the size without meaning
  size_t size_ = 0;
};

/// What an op makes of its inputs: the output's shape and up to five buffers kept for the backward pass.
struct Signature {
  static constexpr size_t kMaxSaved = 5;
  Signature(const Shape& out, std::initializer_list<Shape> kept = {}) : output(out) {
    require(kept.size() <= kMaxSaved, "signature: at most ", kMaxSaved, " saved buffers are supported, got ", kept.size());
    for (const Shape& s : kept) saved[saved_count++] = s;
  }
  Shape output;
  std::array<Shape, kMaxSaved> saved;
  size_t saved_count = 0;
};

/// A gradient that a backward kernel must produce: every element written, or added to where `add` is set.
/// A null gradient is not wanted. A repeated input gets the same memory twice, so finish gradient k before k+1.
struct Grad {
  View view;
  bool add = false;
  explicit operator bool() const { return static_cast<bool>(view); }
  template <class T>
  T* as() const {
    return view.as<T>();
  }
};

struct Forward {
  std::span<const View> in;
  const View& out;
  std::span<const View> saved;
  const Attrs& attrs;
  const RandomState& random;
  Precision precision = Precision::full;  ///< of the operands of matrix products
  DType dtype() const { return out.dtype; }
};

struct Backward {
  std::span<const View> in;
  const View& out;
  std::span<const View> saved;
  const View& out_grad;
  std::span<const Grad> in_grad;
  const Attrs& attrs;
  const RandomState& random;
  Precision precision = Precision::full;
  DType dtype() const { return out.dtype; }
};

using ForwardKernel = void(const Forward&);
using BackwardKernel = void(const Backward&);

/// How the gradient check fills one input of a sample.
struct SampleInput {
  Shape shape = {};
  double low = -1.5, high = 1.5;    ///< uniform floats, or integers low .. high-1 where `integer` is set
  bool integer = false;             ///< i32, without gradient
  std::vector<double> values = {};  ///< given values instead of random ones
  bool absent = false;              ///< an optional input left out
  bool differentiable = true;       ///< false: a float input without gradient
  static SampleInput mask(const Shape& s, std::vector<double> v) { return {.shape = s, .integer = true, .values = std::move(v)}; }
  static SampleInput none() { return {.shape = {}, .absent = true}; }
};

/// Inputs and attributes on which the gradient of an op is checked.
struct Sample {
  std::vector<SampleInput> inputs;
  Attrs attrs = {};
  bool zero_gradient = false;  ///< the true gradient is zero here, e.g. softmax over one element
  double tolerance = 2e-7;     ///< of the largest entry, float64 against central differences
};

struct OpDef {
  const char* name;
  size_t min_inputs, max_inputs;                               ///< inputs beyond min_inputs may be absent
  Signature (*infer)(std::span<const View> in, const Attrs&);  ///< throws ShapeError naming the op and every shape
  struct Kernels {
    ForwardKernel* forward = nullptr;
    BackwardKernel* backward = nullptr;
  };
  Kernels cpu, cuda = {};
  std::vector<Sample> (*samples)();
  std::vector<std::vector<Shape>> (*bad_shapes)() = nullptr;
  /// The same function composed of simpler ops.
  Var (*reference)(Tape&, std::span<const Var> in, const Attrs&) = nullptr;
  /// False where the backward is not the derivative (a frozen gradient); `reference` then defines it.
  bool (*true_gradient)(const Attrs&) = [](const Attrs&) { return true; };
};

/// All registered ops, by name. Throws the error of the first registration that broke the contract.
const std::vector<const OpDef*>& registered_ops();
/// The op called `name`; throws naming the nearest one.
const OpDef& find_op(const std::string& name);
/// Called by the definition of a global `const OpDef& x = register_op({...})`. Never throws: see registered_ops().
const OpDef& register_op(const OpDef& op);
/// Called by the definition of a global in cuda/FAMILY.cu: fills the CUDA column of the op called `op`, whichever file is
/// initialised first. Never throws: see registered_ops(). The value means nothing, it makes a call into a global's initialiser.
bool register_cuda_kernels(const char* op, const OpDef::Kernels& kernels);

/// Stores or accumulates, as the gradient asks.
template <class T>
inline void put(T& to, T value, bool add) {
  to = add ? to + value : value;
}

}  // namespace sinkgrad
