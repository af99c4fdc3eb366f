// In place of the CUDA library, for test_device: one of another build (MUST_NOT_RUN), and one of this build whose backend says so.
#include <cstdlib>

#include "core/build.h"
#include "core/check.h"
#include "core/device.h"

SINKGRAD_DECLARE_BUILD();

namespace {

sinkgrad::Backend& open(int) { throw sinkgrad::DeviceError("cuda: the fake backend was asked"); }

[[maybe_unused]] const bool g_registered = [] {
#ifdef MUST_NOT_RUN
  std::abort();
#endif
  return sinkgrad::Device::register_cuda_backend(open);
}();

}  // namespace
