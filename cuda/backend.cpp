// The CUDA backend: opening the GPU of the process, and moving bytes on its stream.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>
#if SINKGRAD_HAS_CUDNN
#include <cudnn.h>
#endif
#if SINKGRAD_HAS_NCCL
#include <nccl.h>
#endif

#include <cstdlib>
#include <cstring>

#include "core/build.h"
#include "cuda/check.h"
#include "cuda/graph.h"
#include "cuda/opening.h"
#include "cuda/self_test.h"
#include "cuda/uploads.h"

SINKGRAD_DECLARE_BUILD();

namespace sinkgrad::cuda {
namespace {

constexpr const char* kBuiltFor = SINKGRAD_CUDA_ARCHITECTURES;  // "sm_80, sm_90, compute_90", from the build

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(int index) : context_(index) {
    CUDA_CHECK(cudaGetDeviceProperties(&properties_, index));
    CUDA_CHECK(cudaHostAlloc(&report_, kReport, cudaHostAllocDefault));
    const std::string reason = self_test(*this);
    require<DeviceError>(reason.empty(), unusable(properties_.name, context_.architecture(), kBuiltFor, reason));
  }

  std::string name() const override { return properties_.name; }
  void* allocate(size_t bytes) override { return context().allocate(bytes); }
  void release(void* memory) override { context().release(memory); }
  void fill(void* memory, int byte, size_t bytes) override {
    if (!context().launches_are_suppressed()) CUDA_CHECK(cudaMemsetAsync(memory, byte, bytes, context_.stream()));
  }
  void copy_in(void* device, const void* host, size_t bytes) override { uploads_.copy(device, host, bytes); }
  void copy(void* to, const void* from, size_t bytes) override {
    if (!context().launches_are_suppressed()) CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, context_.stream()));
  }
  void copy_out(void* host, const void* device, size_t bytes) override {
    refuse_in_recorded_step("reading a value");
    // What a training step reports goes through pinned memory, which costs no extra pass of the driver.
    void* to = bytes <= kReport ? report_ : host;
    CUDA_CHECK(cudaMemcpyAsync(to, device, bytes, cudaMemcpyDeviceToHost, context_.stream()));
    synchronize();
    if (to == report_) std::memcpy(host, report_, bytes);
  }
  void synchronize() override {
    refuse_in_recorded_step("waiting for the device");
    CUDA_CHECK(cudaStreamSynchronize(context_.stream()));
  }
  double seconds(const std::function<void()>& work) override;
  std::vector<std::pair<std::string, std::string>> properties() override;
  /// While each launch is waited for there is nothing to record.
  std::unique_ptr<Recorder> recorder() override { return context_.synchronous() ? nullptr : std::make_unique<GraphRecorder>(uploads_); }

 private:
  static constexpr size_t kReport = 4096;  // bytes
  Context context_;
  Uploads uploads_;
  void* report_ = nullptr;
  cudaDeviceProp properties_;
};

double CudaBackend::seconds(const std::function<void()>& work) {
  struct Event {
    Event() { CUDA_CHECK(cudaEventCreate(&event)); }
    ~Event() { cudaEventDestroy(event); }
    cudaEvent_t event;
  } start, stop;
  CUDA_CHECK(cudaEventRecord(start.event, context_.stream()));
  work();
  CUDA_CHECK(cudaEventRecord(stop.event, context_.stream()));
  CUDA_CHECK(cudaEventSynchronize(stop.event));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.event, stop.event));
  return static_cast<double>(milliseconds) / 1000;
}

std::vector<std::pair<std::string, std::string>> CudaBackend::properties() {
  int driver = 0, runtime = 0;
  CUDA_CHECK(cudaDriverGetVersion(&driver));
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  size_t free = 0, total = 0;
  CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const auto cublas = static_cast<int>(cublasLtGetVersion());
  std::string cudnn = "not in this build";
#if SINKGRAD_HAS_CUDNN
  const auto v = static_cast<int>(cudnnGetVersion());
  cudnn = cat(v / 10000, ".", v % 10000 / 100, ".", v % 100);
#endif
  std::string nccl = "not in this build";
#if SINKGRAD_HAS_NCCL
  int n = 0;
  ncclGetVersion(&n);
  nccl = cat(n / 10000, ".", n % 10000 / 100, ".", n % 100);
#endif
  const std::string failure = self_test(*this);
  return {{"architecture", cat("sm_", context_.architecture(), ", ", context_.multiprocessors(), " multiprocessors, ", context_.shared_limit() / 1024,
                               " KiB of shared memory per block")},
          {"memory", cat(total >> 20, " MiB, ", free >> 20, " MiB free")},
          {"built for", kBuiltFor},
          {"self-test", failure.empty() ? "passed" : failure},
          {"CUDA", cat("runtime ", version_text(runtime), ", driver ", version_text(driver))},
          {"cuBLAS", cat(cublas / 10000, ".", cublas % 10000 / 100, ".", cublas % 100)},
          {"cuDNN", cudnn},
          {"NCCL", nccl}};
}

GpuFacts facts_about(int index) {
  GpuFacts f{.index = index};
  cudaDriverGetVersion(&f.driver);  // 0 without a driver
  cudaRuntimeGetVersion(&f.runtime);
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) f.visible = visible, f.restricted = true;
  const cudaError_t error = cudaGetDeviceCount(&f.count);
  cudaGetLastError();  // forgets it
  f.too_old = error == cudaErrorInsufficientDriver;
  if (error == cudaErrorNoDevice)
    f.count = 0;
  else if (error != cudaSuccess)
    f.error = described(error);
  return f;
}

Backend& open(int index) {
  static CudaBackend* backend = nullptr;  // never destroyed: the driver may end before the last tensor does
  static int opened = 0;
  if (!backend) {
    if (const std::string reason = obstacle(facts_about(index)); !reason.empty()) throw DeviceError(reason);
    backend = new CudaBackend(index);
    opened = index;
  }
  require<DeviceError>(index == opened, "cuda: this process uses GPU ", opened, " and cannot use GPU ", index, " as well");
  return *backend;
}

[[maybe_unused]] const bool registered = Device::register_cuda_backend(open);

}  // namespace
}  // namespace sinkgrad::cuda
