// The self-test's kernel: each element is its own index. One write per element.
#include <array>

#include "cuda/kernel.h"
#include "cuda/self_test.h"

namespace sinkgrad::cuda {
namespace {

constexpr int kCount = 256;

__global__ void write_ramp(Span<int32_t> x) {
  for (int64_t i = thread_index(); i < x.count; i += thread_count()) x[i] = static_cast<int32_t>(i);
}

}  // namespace

std::string self_test(Backend& backend) {
  std::array<int32_t, kCount> values;
  values.fill(-1);
  const std::shared_ptr<void> memory(backend.allocate(sizeof values), [&](void* p) { backend.release(p); });
  try {
    backend.copy_in(memory.get(), values.data(), sizeof values);
    launch(KERNEL(write_ramp), {.blocks = 2, .threads = 64}, Span<int32_t>{static_cast<int32_t*>(memory.get()), kCount});
    backend.copy_out(values.data(), memory.get(), sizeof values);
  } catch (const DeviceError& error) {
    return error.what();
  }
  for (int i = 0; i < kCount; ++i)
    if (values[static_cast<size_t>(i)] != i) return cat("a kernel that should write ", i, " left ", values[static_cast<size_t>(i)]);
  return "";
}

}  // namespace sinkgrad::cuda
