// The device that Device::cuda() opens in the tests: the CUDA kernels on the host executor, memory from the heap.
// Memory on "the device" is the host's, but lies where no kernel of the CPU was given it, so a mixed-up pointer still shows as a race
// or as poison in the results.
#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "core/device.h"
#include "simt/stream.h"

namespace sinkgrad::simt {
namespace {

class HostExecutor final : public Backend {
 public:
  std::string name() const override { return "cuda (host executor)"; }
  void* allocate(size_t bytes) override {
    void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    require<OutOfMemoryError>(memory != nullptr, "cuda (host executor): out of memory, asked for ", bytes, " bytes");
    return memory;
  }
  void release(void* memory) override { std::free(memory); }
  void fill(void* memory, int byte, size_t bytes) override {
    enqueue([=] { std::memset(memory, byte, bytes); });
  }
  void copy_in(void* device, const void* host, size_t bytes) override { upload(device, host, bytes); }
  void copy_out(void* host, const void* device, size_t bytes) override {
    synchronize();
    std::memcpy(host, device, bytes);
  }
  void copy(void* to, const void* from, size_t bytes) override {
    enqueue([=] { std::memcpy(to, from, bytes); });
  }
  void synchronize() override {
    if (stream_mode() != Recorder::Mode::execute) throw NotRepeatable("cuda (host executor): waiting in the middle of a step that is recorded");
  }
  std::unique_ptr<Recorder> recorder() override { return make_recorder(); }
};

Backend& open(int index) {
  require<DeviceError>(index == 0, "cuda: the host executor is device 0, asked for ", index);
  static HostExecutor backend;
  return backend;
}

[[maybe_unused]] const bool registered = Device::register_cuda_backend(open);

}  // namespace
}  // namespace sinkgrad::simt
