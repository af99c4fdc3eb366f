// Device: where memory lives and kernels run. A Device is a small value; its Backend moves bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace sinkgrad {

class Recorder;  // core/replay.h

/// What the engine needs from a device. All but `allocate` and `release` are ordered with the device's kernels; `copy_in` is done with
/// the host's memory when it returns, `copy_out` and `synchronize` return when everything before them is done.
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
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void synchronize() = 0;
  /// Seconds that `work` takes on the device: by its own clock where it has one (CUDA events), else the host's, synchronised.
  virtual double seconds(const std::function<void()>& work);
  /// For people: what the device is and what drives it, as pairs of a name and a value.
  virtual std::vector<std::pair<std::string, std::string>> properties() { return {}; }
  /// For Replay; null where steps cannot be recorded.
  virtual std::unique_ptr<Recorder> recorder();
};

enum class DeviceKind : uint8_t { cpu, cuda };

class Device {
 public:
  static Device cpu();
  /// Throws DeviceError, saying what is missing, when this build or this machine has no such GPU. A process uses one GPU.
  static Device cuda(int index = 0);
  /// Whether this build has a CUDA backend, on whatever machine it runs.
  static bool built_with_cuda();

  DeviceKind kind() const { return kind_; }
  Backend& backend() const { return *backend_; }
  bool operator==(const Device&) const = default;
  /// Called by the definition of a global in the CUDA backend, which cuda() loads when it is first asked for: `open` makes or finds
  /// the backend of a GPU and throws DeviceError. The value means nothing.
  static bool register_cuda_backend(Backend& (*open)(int index));

 private:
  Device(DeviceKind kind, Backend& backend) : kind_(kind), backend_(&backend) {}
  DeviceKind kind_;
  Backend* backend_;
};

}  // namespace sinkgrad
