// The CUDA backend registers its communicator while it is loaded, where it was built with NCCL.
#include "core/communicator.h"

namespace sinkgrad {
namespace {

std::unique_ptr<Communicator> (*g_open_cuda)(const Meeting&) = nullptr;

}  // namespace

std::unique_ptr<Communicator> open_communicator(Device device, const Meeting& meeting) {
  return device.kind() == DeviceKind::cuda && g_open_cuda ? g_open_cuda(meeting) : nullptr;
}

bool register_cuda_communicator(std::unique_ptr<Communicator> (*open)(const Meeting&)) {
  g_open_cuda = open;
  return true;
}

}  // namespace sinkgrad
