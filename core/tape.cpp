// Tape: running ops forward, and the loop over the records that runs them backward.
#include "core/tape.h"

#include <algorithm>
#include <bit>

namespace sinkgrad {

Tape::Tape(DType dtype, Device device) : dtype_(dtype), device_(device), arena_(device) {
  require(is_float(dtype), "tape: computes in f32 or f64, got ", name_of(dtype));
  registered_ops();
}

uint32_t Tape::index(Var v, const char* what) const {
  require(v.tape != nullptr, what, ": the Var is empty");
  require(v.tape == this, what, ": the Var belongs to another tape");
  require(v.step == step_, what, ": the Var was made before Tape::reset(), in step ", v.step, "; now is step ", step_);
  return v.id;
}

Var Tape::push(const Value& v) {
  // The shapes of results follow from those of leaves.
  for (int i = 0; i < v.view.shape.rank(); ++i) note(static_cast<uint64_t>(v.view.shape[i]) + 1);
  values_.push_back(v);
  return {this, static_cast<uint32_t>(values_.size() - 1), step_};
}

const Tape::Value& Tape::root(uint32_t id) const {
  const uint32_t alias = values_[id].alias_of;
  return values_[alias == kAbsent ? id : alias];
}

void Tape::note(uint64_t bits) {
  // A multilinear hash: terms do not wait for one another, and the weights (all odd) tell positions apart.
  trace_ += bits * trace_weight_;
  trace_weight_ += 0x3C6EF372FE94F82A;
}

const OpDef::Kernels& Tape::kernels(const OpDef& op) const {
  const OpDef::Kernels& k = device_.kind() == DeviceKind::cpu ? op.cpu : op.cuda;
  if (!k.forward) throw DeviceError(cat(op.name, ": has no kernel for ", device_.backend().name()));
  return k;
}

void Tape::set_precision(Precision p) {
  require(p == Precision::full || dtype_ == DType::f32, "tape: ", name_of(p), " products need an f32 tape, got ", name_of(dtype_));
  require(p != Precision::tf32 || device_.kind() == DeviceKind::cuda, "tape: tf32 products need a CUDA device, got ", device_.backend().name());
  precision_ = p;
}

Var Tape::leaf(const View& value) {
  require<ShapeError>(!is_float(value.dtype) || value.dtype == dtype_, "leaf: the tape computes in ", name_of(dtype_), ", got ", name_of(value.dtype),
                      " of shape ", value.shape);
  return push({.view = value});
}

View Tape::here(const Tensor& t) {
  if (!t || t.device() == device_) return t.view();
  require(t.device().kind() == DeviceKind::cpu, "leaf: the tensor ", t.shape(), " lies on ", t.device().backend().name(), ", the tape on ",
          device_.backend().name());
  View copy{arena_.allocate(t.view().bytes()), t.shape(), t.dtype()};
  device_.backend().copy_in(copy.data, t.view().data, copy.bytes());
  return copy;
}

Var Tape::leaf(const Tensor& value) { return leaf(here(value)); }

Var Tape::leaf(const Tensor& value, const Tensor& gradient) {
  require(value.device() == device_ && gradient.device() == device_, "leaf: a variable and its gradient must lie on ", device_.backend().name(),
          ", got ", value.device().backend().name(), " and ", gradient.device().backend().name());
  return leaf(value.view(), gradient.view());
}

Var Tape::variable(const Tensor& value) { return variable(here(value)); }

Var Tape::leaf(const View& value, const View& gradient) {
  Var v = leaf(value);
  require<ShapeError>(gradient.shape == value.shape && gradient.dtype == value.dtype && gradient.data,
                      "leaf: the gradient must match the value, got ", value.shape, " ", name_of(value.dtype), " and ", gradient.shape, " ",
                      name_of(gradient.dtype));
  values_.back().grad = gradient.data;
  values_.back().requires_grad = recording_;
  return v;
}

Var Tape::variable(const View& value) {
  Var v = leaf(value);
  require<ShapeError>(is_float(value.dtype), "variable: only floats have gradients, got ", name_of(value.dtype));
  values_.back().requires_grad = values_.back().keep_grad = recording_;
  return v;
}

Var Tape::detach(Var x) { return push({.view = values_[index(x, "detach")].view}); }

Var Tape::reshape(Var x, const Shape& shape) {
  const uint32_t id = index(x, "reshape");
  return push({.view = values_[id].view.reshaped(shape),
               .alias_of = values_[id].alias_of == kAbsent ? id : values_[id].alias_of,
               .requires_grad = values_[id].requires_grad});
}

Var Tape::apply(const OpDef& op, std::span<const Var> in, const Attrs& attrs) {
  require(in.size() >= op.min_inputs && in.size() <= op.max_inputs, op.name, ": takes ", op.min_inputs, " to ", op.max_inputs, " inputs, got ",
          in.size());
  // Views and records are filled in place: one put together elsewhere and copied costs more than a small kernel.
  in_views_.resize(std::max(in_views_.size(), op.max_inputs));
  const std::span<View> views(in_views_.data(), op.max_inputs);
  bool needs_grad = false;
  for (size_t k = 0; k < views.size(); ++k) {
    const bool present = k < in.size() && in[k];
    require(present || k >= op.min_inputs, op.name, ": input ", k, " must not be empty");
    const uint32_t id = present ? index(in[k], op.name) : kAbsent;
    if (present)
      views[k] = values_[id].view;
    else
      views[k] = {};
    needs_grad |= present && values_[id].requires_grad;
  }
  const Signature sig = op.infer(views, attrs);
  const OpDef::Kernels& k = kernels(op);

  // A refused op has thrown by now and left the tape as it was.
  const auto first_input = static_cast<uint32_t>(input_ids_.size()), first_saved = static_cast<uint32_t>(saved_.size()),
             first_attr = static_cast<uint32_t>(attrs_.size()), output = static_cast<uint32_t>(values_.size());
  note(reinterpret_cast<uintptr_t>(&op) + static_cast<uint64_t>(precision_));
  for (size_t i = 0; i < views.size(); ++i) input_ids_.push_back(i < in.size() && in[i] ? in[i].id : kAbsent);
  for (const Attr& a : attrs.items()) {
    attrs_.push_back(a);
    note(std::bit_cast<uint64_t>(a.value));
  }
  auto allocate = [&](View& v, const Shape& s) {
    v.shape = s;
    v.dtype = dtype_;
    v.data = arena_.allocate(v.bytes());
    note(reinterpret_cast<uintptr_t>(v.data));
  };
  for (size_t i = 0; i < sig.saved_count; ++i) allocate(saved_.emplace_back(), sig.saved[i]);
  Value& out = values_.emplace_back();
  allocate(out.view, sig.output);
  out.requires_grad = needs_grad;
  out.made_by_op = true;
  for (const View& v : views) note(reinterpret_cast<uintptr_t>(v.data));

  k.forward({views, out.view, {saved_.data() + first_saved, sig.saved_count}, attrs, random_, precision_});
  Record& r = records_.emplace_back();
  r.op = &op;
  r.output = output;
  r.first_input = first_input;
  r.first_saved = first_saved;
  r.first_attr = first_attr;
  r.input_count = static_cast<uint8_t>(views.size());
  r.saved_count = static_cast<uint8_t>(sig.saved_count);
  r.attr_count = static_cast<uint8_t>(attrs.items().size());
  if (observer_) observer_->after_forward(*this, r);
  return {this, output, step_};
}

void Tape::backward(Var out, const View& cotangent, BackwardOptions options) {
  const uint32_t id = index(out, "backward");
  Value& top = root(id);
  require(top.requires_grad, "backward: the output depends on no variable, its shape is ", values_[id].view.shape);
  require(top.made_by_op, "backward: the output must be made by an op");
  require(!consumed_, "backward: the records, the last of them '", records_.back().op->name,
          "', were consumed by an earlier backward; call that one with retain = true to keep them");
  const View& v = values_[id].view;
  if (cotangent)
    require<ShapeError>(cotangent.shape == v.shape && cotangent.dtype == dtype_, "backward: the cotangent must match the output, got ",
                        cotangent.shape, " ", name_of(cotangent.dtype), " for ", v.shape, " ", name_of(dtype_));
  else
    require<ShapeError>(v.shape.count() == 1, "backward: the output has shape ", v.shape, "; pass a cotangent or reduce it to one element");

  if (ran_backward_)  // retained gradients of intermediate values belong to the earlier backward
    for (const Record& r : records_) release_grad(root(r.output));
  ran_backward_ = true;
  top.grad = gradients_.take(v.bytes());
  top.owns_grad = true;
  if (cotangent) {
    device_.backend().copy(top.grad, cotangent.data, v.bytes());
  } else {
    const double one = 1;
    const float one_f = 1;
    device_.backend().copy_in(top.grad, dtype_ == DType::f32 ? static_cast<const void*>(&one_f) : &one, size_of(dtype_));
  }
  for (size_t i = records_.size(); i-- > 0;) run_backward(records_[i]);
  consumed_ = !options.retain;
}

void Tape::run_backward(const Record& r) {
  Value& out = root(r.output);
  if (!out.grad || !out.requires_grad) return;
  const std::span<const uint32_t> ids = inputs(r);
  const std::span<View> views(in_views_.data(), ids.size());
  in_grads_.resize(std::max(in_grads_.size(), ids.size()));
  for (size_t k = 0; k < ids.size(); ++k) {
    const bool present = ids[k] != kAbsent;
    if (present)
      views[k] = values_[ids[k]].view;
    else
      views[k] = {};
    Grad& g = in_grads_[k];
    g.view.data = nullptr;
    g.add = false;
    if (!present || !root(ids[k]).requires_grad) continue;
    Value& v = root(ids[k]);
    g.add = v.grad != nullptr;
    if (!v.grad) {
      v.grad = gradients_.take(v.view.bytes());
      v.owns_grad = true;
    }
    g.view.data = v.grad;
    g.view.shape = values_[ids[k]].view.shape;
    g.view.dtype = dtype_;
    note(reinterpret_cast<uintptr_t>(v.grad));
  }
  out_grad_.data = out.grad;
  out_grad_.shape = out.view.shape;
  out_grad_.dtype = dtype_;
  note(reinterpret_cast<uintptr_t>(out.grad));
  const std::span<const Grad> in_grad(in_grads_.data(), ids.size());
  kernels(*r.op).backward({views, out.view, saved(r), out_grad_, in_grad, attrs(r), random_, precision_});
  if (observer_) observer_->after_backward(*this, r, in_grad);
  if (!out.keep_grad) release_grad(out);
}

void Tape::release_grad(Value& v) {
  if (v.owns_grad) gradients_.give_back(v.grad, v.view.bytes());
  v.grad = nullptr;
  v.owns_grad = false;
}

void Tape::reset() {
  values_.clear();
  records_.clear();
  input_ids_.clear();
  saved_.clear();
  attrs_.clear();
  gradients_.reset();
  arena_.reset();
  trace_ = 0;
  trace_weight_ = 1;
  consumed_ = ran_backward_ = false;
  ++step_;
}

View Tape::grad(Var x) const {
  const View& view = values_[index(x, "grad")].view;
  void* grad = root(x.id).grad;
  return grad ? View{grad, view.shape, view.dtype} : View{};
}

View Tape::saved(Var x, size_t k) const {
  uint32_t id = index(x, "saved");
  if (values_[id].alias_of != kAbsent) id = values_[id].alias_of;
  // Records are in order of their outputs.
  size_t low = 0, high = records_.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (records_[middle].output < id)
      low = middle + 1;
    else
      high = middle;
  }
  require(low < records_.size() && records_[low].output == id, "saved: the value was not made by an op");
  require(k < records_[low].saved_count, records_[low].op->name, ": keeps ", int{records_[low].saved_count}, " buffers, asked for number ", k);
  return saved_[records_[low].first_saved + k];
}

}  // namespace sinkgrad
