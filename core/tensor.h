// Tensor: owns memory and outlives a training step. View: what kernels see, a pointer with a shape and a dtype.
#pragma once
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/check.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/shape.h"

namespace sinkgrad {

/// Dense row-major memory that somebody else owns. A null View stands for an absent optional input.
struct View {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
  size_t bytes() const { return static_cast<size_t>(shape.count()) * size_of(dtype); }
  /// The same memory under another shape of equal count.
  View reshaped(const Shape& s) const {
    require<ShapeError>(s.count() == shape.count(), "reshape: counts must be equal, got ", shape, " and ", s);
    return {data, s, dtype};
  }
  /// Rows begin .. end-1 of the first dimension.
  View rows(int64_t begin, int64_t end) const {
    require<ShapeError>(shape.rank() > 0 && 0 <= begin && begin <= end && end <= shape[0], "rows: ", begin, "..", end,
                        " must lie in the first dimension, got ", shape);
    View r = *this;
    r.shape.set(0, end - begin);
    r.data = static_cast<char*>(data) + static_cast<size_t>(begin * shape.count(1, shape.rank())) * size_of(dtype);
    return r;
  }
};

/// Prints the shapes of the views that are present, for messages: "(2,3), (3)".
struct ShapesOf {
  std::span<const View> views;
  friend std::ostream& operator<<(std::ostream& out, const ShapesOf& s) {
    const char* separator = "";
    for (const View& v : s.views)
      if (v) out << std::exchange(separator, ", ") << v.shape;
    return out;
  }
};

class Tensor {
 public:
  Tensor() = default;
  /// Zero-filled.
  explicit Tensor(const Shape& shape, DType dtype = DType::f32, Device device = Device::cpu());
  template <class T>
  static Tensor of(const Shape& shape, std::span<const T> values) {
    Tensor t(shape, dtype_of<T>());
    require<ShapeError>(static_cast<int64_t>(values.size()) == shape.count(), "tensor: ", values.size(), " values do not fill ", shape);
    std::copy(values.begin(), values.end(), t.span<T>().begin());
    return t;
  }
  template <class T>
  static Tensor of(const Shape& shape, std::initializer_list<T> values) {
    return of<T>(shape, std::span<const T>(values.begin(), values.size()));
  }
  template <class T>
  static Tensor of(const Shape& shape, const std::vector<T>& values) {
    return of<T>(shape, std::span<const T>(values));
  }

  const Shape& shape() const { return view_.shape; }
  DType dtype() const { return view_.dtype; }
  int64_t count() const { return view_.shape.count(); }
  const View& view() const { return view_; }
  explicit operator bool() const { return view_.data != nullptr; }
  /// The elements, on the CPU only.
  template <class T>
  std::span<T> span() const {
    require(device_.kind() == DeviceKind::cpu, "tensor: ", view_.shape, " lies on ", device_.backend().name(), "; to(Device::cpu()) reads it");
    require(dtype_of<T>() == view_.dtype, "tensor: holds ", name_of(view_.dtype), ", asked for ", name_of(dtype_of<T>()));
    return {view_.as<T>(), static_cast<size_t>(count())};
  }
  Device device() const { return device_; }
  /// A copy on the same device.
  Tensor clone() const { return to(device_); }
  /// A copy on another device.
  Tensor to(Device device) const;
  /// Copies the elements of a tensor of the same shape and dtype; one of the two must be on the CPU or both on one device.
  void copy_from(const Tensor& other);
  /// Rows begin .. end-1 of the first dimension, sharing this tensor's memory.
  Tensor rows(int64_t begin, int64_t end) const {
    Tensor part = *this;
    part.view_ = view_.rows(begin, end);
    return part;
  }
  /// The first elements under another shape, sharing this tensor's memory.
  Tensor first(const Shape& shape) const {
    Tensor part = *this;
    part.view_ = view_.reshaped({count()}).rows(0, shape.count()).reshaped(shape);
    return part;
  }
  void zero();

 private:
  View view_;
  Device device_ = Device::cpu();
  std::shared_ptr<void> memory_;
};

/// A structure of plain numbers in the memory of a device.
template <class T>
class Resident {
 public:
  explicit Resident(Device device) : memory_({(sizeof(T) + 7) / 8}, DType::i64, device) {}
  /// In the memory of the device.
  T* get() const { return static_cast<T*>(memory_.view().data); }
  void write(const T& value) { memory_.device().backend().copy_in(get(), &value, sizeof(T)); }
  /// Waits for the device.
  T read() const {
    T value;
    memory_.device().backend().copy_out(&value, get(), sizeof(T));
    return value;
  }

 private:
  static_assert(std::is_trivially_copyable_v<T>);
  Tensor memory_;
};

/// The elements of a view of any dtype on `device`, converted to double.
std::vector<double> to_doubles(const View& view, Device device = Device::cpu());

}  // namespace sinkgrad
