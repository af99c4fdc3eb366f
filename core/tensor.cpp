// Tensor memory comes from a backend and is shared by copies of the handle.
#include "core/tensor.h"

#include "core/memory.h"

namespace sinkgrad {

Tensor::Tensor(const Shape& shape, DType dtype, Device device) : device_(device) {
  view_ = {nullptr, shape, dtype};
  Backend* backend = &device.backend();
  // One spare element, so that an empty tensor has an address and is not taken for an absent input.
  const size_t bytes = view_.bytes() + size_of(dtype);
  memory_ = std::shared_ptr<void>(backend->allocate(bytes), [backend](void* p) { backend->release(p); });
  view_.data = memory_.get();
  backend->fill(view_.data, 0, bytes);
}

Tensor Tensor::to(Device device) const {
  Tensor t(view_.shape, view_.dtype, device);
  t.copy_from(*this);
  return t;
}

void Tensor::copy_from(const Tensor& other) {
  require<ShapeError>(view_.shape == other.view_.shape && view_.dtype == other.view_.dtype, "tensor: copies need equal shapes and dtypes, got ",
                      view_.shape, " ", name_of(view_.dtype), " and ", other.view_.shape, " ", name_of(other.view_.dtype));
  const bool from_host = other.device_.kind() == DeviceKind::cpu, to_host = device_.kind() == DeviceKind::cpu;
  require(from_host || to_host || device_ == other.device_, "tensor: cannot copy ", view_.shape, " from ", other.device_.backend().name(), " to ",
          device_.backend().name());
  if (from_host)
    device_.backend().copy_in(view_.data, other.view_.data, view_.bytes());
  else if (to_host)
    other.device_.backend().copy_out(view_.data, other.view_.data, view_.bytes());
  else
    device_.backend().copy(view_.data, other.view_.data, view_.bytes());
}

void Tensor::zero() { device_.backend().fill(view_.data, 0, view_.bytes()); }

std::vector<double> to_doubles(const View& view, Device device) {
  if (device.kind() != DeviceKind::cpu) {
    std::vector<char> host(view.bytes());
    device.backend().copy_out(host.data(), view.data, view.bytes());
    return to_doubles({host.data(), view.shape, view.dtype});
  }
  std::vector<double> out(static_cast<size_t>(view.shape.count()));
  auto copy = [&]<class T>(const T* p) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<double>(p[i]);
  };
  switch (view.dtype) {
    case DType::f32: copy(view.as<float>()); break;
    case DType::f64: copy(view.as<double>()); break;
    case DType::i32: copy(view.as<int32_t>()); break;
    case DType::i64: copy(view.as<int64_t>()); break;
  }
  return out;
}

}  // namespace sinkgrad
