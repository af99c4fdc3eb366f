// Module: a tree of layers that names its parameters by dotted path. ParameterPack: all of them in flat buffers.
//
//   struct Net : Module { Linear in{*this, "in", 3, 8}, out{*this, "out", 8, 2}; ... };
//   Net net;
//   ParameterPack pack(net, DType::f32, /*seed=*/1);   // values, gradients; drawn on the CPU, by name
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "core/tape.h"
#include "nn/init.h"

namespace sinkgrad {

struct Parameter {
  std::string name;  ///< dotted path from the root
  Shape shape;
  Init init;
  bool decay;                  ///< weight decay applies; false for biases and norm gains
  View value = {}, grad = {};  ///< set by ParameterPack, on its device

  /// The parameter on a tape of the pack's device; its gradient is added to `grad`.
  Var on(Tape& tape) const { return tape.leaf(value, grad); }
  /// Rows begin .. end-1 of its first dimension, without a copy.
  Var rows(Tape& tape, int64_t begin, int64_t end) const { return tape.leaf(value.rows(begin, end), grad.rows(begin, end)); }
};

/// State that is saved with the parameters but not trained, such as running statistics.
struct Buffer {
  std::string name;
  Shape shape;
  double initial;
  View value = {};  ///< set by ParameterPack, on its device
};

/// Layers derive from it and take (parent, name). Not copyable: parameters are found by reference.
class Module {
 public:
  Module() : root_(this) {}
  Module(Module& parent, const std::string& name) : root_(parent.root_), path_(parent.path_.empty() ? name : parent.path_ + "." + name) {}
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  const std::string& path() const { return path_; }
  /// All parameters of the whole tree, in order of construction.
  std::deque<Parameter>& parameters() { return root_->parameters_; }
  std::deque<Buffer>& buffers() { return root_->buffers_; }
  int64_t parameter_count();
  /// Throws naming the nearest parameter.
  Parameter& find_parameter(const std::string& name);

 protected:
  Parameter& parameter(const std::string& name, const Shape& shape, Init init, bool decay = true);
  Buffer& buffer(const std::string& name, const Shape& shape, double initial);

 private:
  std::string full_name(const std::string& name) const { return path_.empty() ? name : path_ + "." + name; }
  Module* root_;
  std::string path_;
  std::deque<Parameter> parameters_;
  std::deque<Buffer> buffers_;
};

/// Owns the memory of a module's parameters on one device: one flat buffer of values, one of gradients, one of untrained state.
/// Every parameter starts on a 64-byte boundary; the gaps stay zero.
class ParameterPack {
 public:
  /// A stretch of the flat buffers with or without weight decay.
  struct Range {
    int64_t begin, end;
    bool decay;
  };
  /// Lays out and draws the initial values: each parameter from its own stream "init/<name>" of `seed`, on the CPU whatever the device.
  ParameterPack(Module& module, DType dtype, uint64_t seed, Device device = Device::cpu());

  const Tensor& values() const { return values_; }
  const Tensor& gradients() const { return gradients_; }
  /// The buffers of the module.
  const Tensor& state() const { return state_; }
  const std::vector<Range>& ranges() const { return ranges_; }
  Module& module() const { return *module_; }
  DType dtype() const { return values_.dtype(); }
  Device device() const { return values_.device(); }
  void zero_gradients() { gradients_.zero(); }
  /// The part of a flat tensor of the same layout as values() (an optimizer's moments, a copy on another device) that belongs to a parameter.
  View part(const Tensor& flat, const Parameter& p) const { return part(flat, p.value, values_); }
  /// Likewise for state() and a buffer.
  View part(const Tensor& flat, const Buffer& b) const { return part(flat, b.value, state_); }

 private:
  static View part(const Tensor& flat, const View& own, const Tensor& all);
  Module* module_;
  Tensor values_, gradients_, state_;
  std::vector<Range> ranges_;
};

}  // namespace sinkgrad
