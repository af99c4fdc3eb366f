// Tensor memory comes from a backend and is shared by copies of the handle.
#include "core/tensor.h"

#include "core/memory.h"

namespace sinkgrad {

Tensor::Tensor(const Shape& shape, DType dtype, Device device) {
  view_ = {nullptr, shape, dtype};
  Backend* backend = &device.backend();
  // One spare element, so that an empty tensor has an address and is not taken for an absent input.
  const size_t bytes = view_.bytes() + size_of(dtype);
  memory_ = std::shared_ptr<void>(backend->allocate(bytes), [backend](void* p) { backend->release(p); });
  view_.data = memory_.get();
  backend->fill(view_.data, 0, bytes);
}

Tensor Tensor::clone() const {
  Tensor t(view_.shape, view_.dtype);
  Device::cpu().backend().copy_in(t.view_.data, view_.data, view_.bytes());
  return t;
}

void Tensor::zero() { Device::cpu().backend().fill(view_.data, 0, view_.bytes()); }

std::vector<double> to_doubles(const View& view) {
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
