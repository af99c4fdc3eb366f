// The tape: an op runs at once and appends one flat record; backward is a loop over the records from the end.
// reset() ends a step. Nothing recurses, so a graph of a million records is fine.
//
//   Tape tape(DType::f32);
//   Var x = tape.leaf(value, gradient);       // Tensors that outlive the step
//   Var loss = mean(mul(x, x));
//   tape.backward(loss);                      // adds to `gradient`
//   tape.reset();                             // x and loss are gone; using them throws
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/memory.h"
#include "core/op.h"

namespace sinkgrad {

/// A handle on a value of the current step. A default-constructed Var stands for an absent optional input.
struct Var {
  Tape* tape = nullptr;
  uint32_t id = 0, step = 0;
  explicit operator bool() const { return tape != nullptr; }
  const Shape& shape() const;
  /// The elements; see to_doubles() for those on a GPU. Values on the tape are read-only: there are no in-place ops and no
  /// views of them.
  template <class T>
  std::span<const T> span() const;
};

/// One op that ran. Inputs, saved buffers and attributes are reached through the tape.
struct Record {
  const OpDef* op = nullptr;
  uint32_t output = 0, first_input = 0, first_saved = 0, first_attr = 0;
  uint8_t input_count = 0, saved_count = 0, attr_count = 0;
};

/// Sees every record as it runs; for inspection, drawing and finding the first NaN.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void after_forward(const Tape&, const Record&) {}
  virtual void after_backward(const Tape&, const Record&, std::span<const Grad> /*in_grad*/) {}
};

/// Which items of a batch a tape computes where several processes share it: `items` of them, from item `first` on.
struct BatchShare {
  int64_t first = 0, items = 1;
};

class Tape {
 public:
  static constexpr uint32_t kAbsent = UINT32_MAX;
  struct BackwardOptions {
    bool retain = false;  ///< keep the records for another backward; gradients of leaves accumulate
  };

  /// Throws the error of any op that was registered against the contract.
  explicit Tape(DType dtype = DType::f32, Device device = Device::cpu());

  /// A constant: no gradient flows to it. A View must lie on the tape's device and outlive the step; a Tensor on the CPU is
  /// copied to the device of a CUDA tape.
  Var leaf(const View& value);
  Var leaf(const Tensor& value);
  /// A variable whose gradient is added to `gradient`.
  Var leaf(const View& value, const View& gradient);
  Var leaf(const Tensor& value, const Tensor& gradient);
  /// A variable whose gradient the tape keeps until reset(): see grad().
  Var variable(const View& value);
  Var variable(const Tensor& value);
  /// The same value as a constant.
  Var detach(Var x);
  /// The same elements under another shape; free.
  Var reshape(Var x, const Shape& shape);

  Var apply(const OpDef& op, std::span<const Var> in, const Attrs& attrs = {});
  Var apply(const OpDef& op, std::initializer_list<Var> in, const Attrs& attrs = {}) { return apply(op, std::span(in.begin(), in.size()), attrs); }
  /// Accumulates d<out, cotangent>/d(leaf) into every variable. Without a cotangent `out` must have one element. A cotangent
  /// given as a View lies on the tape's device.
  void backward(Var out, const View& cotangent, BackwardOptions options);
  void backward(Var out, const Tensor& cotangent, BackwardOptions options = {false}) { backward(out, here(cotangent), options); }
  void backward(Var out, BackwardOptions options = {false}) { backward(out, View{}, options); }
  /// Ends the step: forgets every value and keeps the memory.
  void reset();

  /// Asks that the gradient of an intermediate value outlives backward.
  void retain_grad(Var x) { values_[index(x, "retain_grad")].keep_grad = true; }
  /// The gradient of a variable or retained value; a null View when none has reached it.
  View grad(Var x) const;
  /// The value behind a handle. For kernels and tools: writing through it corrupts the backward pass.
  const View& value(Var x) const { return values_[index(x, "value")].view; }
  const View& value(uint32_t id) const { return values_[id].view; }
  bool requires_grad(Var x) const { return values_[index(x, "requires_grad")].requires_grad; }
  bool requires_grad(uint32_t id) const { return values_[id].requires_grad; }
  /// The value whose memory and gradient value `id` shares: another one for a reshape, else itself.
  uint32_t source(uint32_t id) const { return values_[id].alias_of == kAbsent ? id : values_[id].alias_of; }
  /// Buffer k that the op which made x keeps for its backward, e.g. potentials.
  View saved(Var x, size_t k) const;

  /// Training or evaluation: asked by dropout and batch norm layers.
  void set_training(bool on) { training_ = on; }
  bool training() const { return training_; }
  /// While false, no gradients are needed and leaves become constants.
  void set_recording(bool on) { recording_ = on; }
  bool recording() const { return recording_; }
  /// How matrix products read f32 operands. Throws when the tape's dtype or device has no such products.
  void set_precision(Precision precision);
  Precision precision() const { return precision_; }
  /// Seed and step that key the random ops.
  void set_random(const RandomState& r) {
    random_ = r;
    note(r.seed);
  }
  const RandomState& random() const { return random_; }
  /// Random ops then draw what they would draw for these items in the whole batch.
  void set_share(const BatchShare& s) { share_ = s; }
  const BatchShare& share() const { return share_; }
  void set_observer(Observer* o) { observer_ = o; }
  Observer* observer() const { return observer_; }

  std::span<const Record> records() const { return records_; }
  std::span<const uint32_t> inputs(const Record& r) const { return {&input_ids_[r.first_input], r.input_count}; }
  std::span<const View> saved(const Record& r) const { return {saved_.data() + r.first_saved, r.saved_count}; }
  Attrs attrs(const Record& r) const { return Attrs(std::span(attrs_.data() + r.first_attr, r.attr_count)); }
  size_t value_count() const { return values_.size(); }
  /// Hash over every op, attribute, shape and address seen since reset(): equal for two steps that can share a record (core/replay.h).
  uint64_t trace() const { return trace_; }
  const Arena& memory() const { return arena_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }

 private:
  struct Value {
    View view;
    void* grad = nullptr;
    uint32_t alias_of = kAbsent;  ///< reshape: shares memory and gradient with this value
    bool requires_grad = false, owns_grad = false, keep_grad = false, made_by_op = false;
  };
  uint32_t index(Var v, const char* what) const;
  View here(const Tensor& t);
  Var push(const Value& v);
  const Value& root(uint32_t id) const;
  Value& root(uint32_t id) { return const_cast<Value&>(std::as_const(*this).root(id)); }
  void release_grad(Value& v);
  const OpDef::Kernels& kernels(const OpDef& op) const;
  void note(uint64_t bits);
  void run_backward(const Record& r);

  DType dtype_;
  Device device_;
  Arena arena_;
  Recycler gradients_{arena_};
  std::vector<Value> values_;
  std::vector<Record> records_;
  std::vector<uint32_t> input_ids_;
  std::vector<View> saved_, in_views_;
  std::vector<Attr> attrs_;
  std::vector<Grad> in_grads_;
  View out_grad_;
  RandomState random_;
  BatchShare share_;
  Precision precision_ = Precision::full;
  Observer* observer_ = nullptr;
  uint64_t trace_ = 0, trace_weight_ = 1;
  uint32_t step_ = 1;
  bool training_ = true, recording_ = true, consumed_ = false, ran_backward_ = false;
};

inline const Shape& Var::shape() const { return tape->value(*this).shape; }

template <class T>
std::span<const T> Var::span() const {
  const View& v = tape->value(*this);
  require(tape->device().kind() == DeviceKind::cpu, "span: the value lies on ", tape->device().backend().name(),
          "; to_doubles(value, device) reads it");
  require(v.dtype == dtype_of<T>(), "span: value holds ", name_of(v.dtype), ", asked for ", name_of(dtype_of<T>()));
  return {v.as<T>(), static_cast<size_t>(v.shape.count())};
}

}  // namespace sinkgrad
