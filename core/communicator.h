// Communicator: a device's own way to sum buffers over the processes of a job, such as NCCL between GPUs, without a way through host memory.
#pragma once
#include <functional>
#include <memory>

#include "core/device.h"
#include "core/tensor.h"

namespace sinkgrad {

class Communicator {
 public:
  virtual ~Communicator() = default;
  /// Starts the sum of an f32 buffer of the device, in place, after all that the device was asked for before.
  virtual void start_sum(const View& values) = 0;
  /// What the device is asked for from now on comes after all sums. The host waits for nothing.
  virtual void finish_sums() = 0;
};

/// How process `rank` of `size` meets the others: `share` hands bytes of rank 0 to all.
struct Meeting {
  int rank, size;
  std::function<void(void*, size_t)> share;
};

/// Null where the device has none: sums then go through host memory. All processes must call it.
std::unique_ptr<Communicator> open_communicator(Device device, const Meeting& meeting);

/// Called by the definition of a global in the CUDA backend. The value means nothing.
bool register_cuda_communicator(std::unique_ptr<Communicator> (*open)(const Meeting&));

}  // namespace sinkgrad
