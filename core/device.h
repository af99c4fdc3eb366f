// Device: where memory lives and kernels run. A Device is a small value; its Backend moves bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace sinkgrad {

/// What the engine needs from a device. `fill`, `copy_in` and `copy_out` are ordered with the device's kernels.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  /// 256-byte aligned memory; throws OutOfMemoryError.
  virtual void* allocate(size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void fill(void* memory, int byte, size_t bytes) = 0;
  virtual void copy_in(void* device, const void* host, size_t bytes) = 0;
  virtual void copy_out(void* host, const void* device, size_t bytes) = 0;
};

enum class DeviceKind : uint8_t { cpu, cuda };

class Device {
 public:
  static Device cpu();
  /// Throws DeviceError, saying what is missing, when this build or this machine has no such GPU.
  static Device cuda(int index = 0);

  DeviceKind kind() const { return kind_; }
  Backend& backend() const { return *backend_; }
  bool operator==(const Device&) const = default;

 private:
  Device(DeviceKind kind, Backend& backend) : kind_(kind), backend_(&backend) {}
  DeviceKind kind_;
  Backend* backend_;
};

}  // namespace sinkgrad
