// Routine: a function on device memory that has no gradient, such as an optimizer's update. One kernel per device, like the
// columns of an op.
#pragma once
#include "core/check.h"
#include "core/device.h"

namespace sinkgrad {

template <class Arguments>
struct Routine {
  const char* name;
  void (*cpu)(const Arguments&);
  void (*cuda)(const Arguments&) = nullptr;  ///< filled by register_cuda_routine()

  /// Runs the kernel of the device.
  void operator()(const Device& device, const Arguments& arguments) const {
    const auto kernel = device.kind() == DeviceKind::cpu ? cpu : cuda;
    require<DeviceError>(kernel != nullptr, name, ": has no kernel for ", device.backend().name());
    kernel(arguments);
  }
};

/// Called by the definition of a global in cuda/FAMILY.cu. The value means nothing.
template <class Arguments>
bool register_cuda_routine(Routine<Arguments>& routine, void (*kernel)(const Arguments&)) {
  routine.cuda = kernel;
  return true;
}

}  // namespace sinkgrad
