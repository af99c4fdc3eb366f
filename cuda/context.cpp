// The context: launching, scratch memory, and library handles that are made when first asked for.
#include "cuda/context.h"

#include <cublasLt.h>
#if SINKGRAD_HAS_CUDNN
#include <cudnn.h>
#endif

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "cuda/check.h"

namespace sinkgrad::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kLargestGrowth = size_t{1} << 30;     // beyond what is asked for
constexpr size_t kSmallestScratch = size_t{64} << 20;  // the libraries' workspace and a little
constexpr size_t kSharedWithoutAsking = 24 << 10;      // 48 KiB less what kernels take statically
constexpr int kPortableCluster = 8, kLargestCluster = 16;

Context* g_context = nullptr;

/// One block of scratch memory; a mark is the block's number and the offset into it.
struct ScratchBlock {
  char* memory;
  size_t bytes;
};
constexpr int kOffsetBits = 48;
constexpr size_t kOffsetMask = (size_t{1} << kOffsetBits) - 1;

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  CUDA_CHECK(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

/// The newest architecture of this build that the device can run: what its kernels were compiled for, also where they come from PTX.
int compiled_for(int device) {
  int newest = 0;
  const std::string_view names = SINKGRAD_CUDA_ARCHITECTURES;  // "sm_80, compute_90"
  for (size_t at = names.find('_'); at != std::string_view::npos; at = names.find('_', at + 1)) {
    int number = 0;
    std::from_chars(names.data() + at + 1, names.data() + names.size(), number);
    if (number <= device) newest = std::max(newest, number);
  }
  return newest > 0 ? newest : device;
}

}  // namespace

struct Context::Members {
  int index = 0, multiprocessors = 0, architecture = 0;
  size_t shared_limit = 0;
  bool synchronous = false;
  cudaStream_t stream = nullptr;
  cublasHandle_t cublas = nullptr;
  cublasLtHandle_t cublas_lt = nullptr;
#if SINKGRAD_HAS_CUDNN
  cudnnHandle_t cudnn = nullptr;
#endif
  std::map<std::tuple<const void*, int, int, size_t>, bool> clusters;  // large ones, by function, blocks, threads and shared memory
  std::unordered_map<const void*, size_t> shared_allowed;              // by function, above kSharedWithoutAsking
  std::vector<ScratchBlock> scratch;
  size_t scratch_block = 0, scratch_offset = 0;

  cudaError_t allow_shared(const void* function, size_t bytes) {
    if (bytes <= kSharedWithoutAsking) return cudaSuccess;
    size_t& allowed = shared_allowed[function];
    if (allowed >= bytes) return cudaSuccess;
    const cudaError_t error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (error == cudaSuccess) allowed = bytes;
    return error;
  }
};

Context::Context(int index) : members_(std::make_unique<Members>()) {
  Members& m = *members_;
  m.index = index;
  use_in_this_thread();
  m.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, index);
  m.shared_limit = static_cast<size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  m.architecture = compiled_for(10 * attribute(cudaDevAttrComputeCapabilityMajor, index) + attribute(cudaDevAttrComputeCapabilityMinor, index));
  const char* synchronous = std::getenv("SINKGRAD_CUDA_SYNCHRONOUS");
  m.synchronous = synchronous && *synchronous && *synchronous != '0';
  CUDA_CHECK(cudaStreamCreateWithFlags(&m.stream, cudaStreamNonBlocking));
  g_context = this;
}

Context::~Context() {
  g_context = nullptr;
  // Errors are of no interest any more.
#if SINKGRAD_HAS_CUDNN
  if (members_->cudnn) cudnnDestroy(members_->cudnn);
#endif
  if (members_->cublas_lt) cublasLtDestroy(members_->cublas_lt);
  if (members_->cublas) cublasDestroy(members_->cublas);
  for (const ScratchBlock& b : members_->scratch) cudaFree(b.memory);
  cudaStreamDestroy(members_->stream);
}

Context& context() {
  require<DeviceError>(g_context != nullptr, "cuda: no GPU has been opened; Device::cuda() does that");
  g_context->use_in_this_thread();
  return *g_context;
}

void Context::use_in_this_thread() {
  thread_local int index = 0;  // CUDA's own default
  if (index == members_->index) return;
  CUDA_CHECK(cudaSetDevice(members_->index));
  index = members_->index;
}

CUstream_st* Context::stream() const { return members_->stream; }
bool Context::synchronous() const { return members_->synchronous; }
void Context::set_synchronous(bool on) { members_->synchronous = on; }
int Context::multiprocessors() const { return members_->multiprocessors; }
size_t Context::shared_limit() const { return members_->shared_limit; }
int Context::architecture() const { return members_->architecture; }

cublasContext* Context::cublas() {
  Members& m = *members_;
  if (!m.cublas) {
    CUDA_CHECK(cublasCreate(&m.cublas));
    CUDA_CHECK(cublasSetStream(m.cublas, m.stream));
  }
  return m.cublas;
}

cublasLtContext* Context::cublas_lt() {
  if (!members_->cublas_lt) CUDA_CHECK(cublasLtCreate(&members_->cublas_lt));
  return members_->cublas_lt;
}

cudnnContext* Context::cudnn() {
#if SINKGRAD_HAS_CUDNN
  auto check_cudnn = [](cudnnStatus_t status, const char* call) {
    require<DeviceError>(status == CUDNN_STATUS_SUCCESS, "cuda: ", call, " failed: ", cudnnGetErrorString(status));
  };
  Members& m = *members_;
  if (!m.cudnn) {
    check_cudnn(cudnnCreate(&m.cudnn), "cudnnCreate");
    check_cudnn(cudnnSetStream(m.cudnn, m.stream), "cudnnSetStream");
  }
  return m.cudnn;
#else
  throw DeviceError("cuda: this sinkgrad was built without cuDNN");
#endif
}

void Context::launch(const void* function, const char* name, const std::source_location& place, const Launch& shape, void** arguments) {
  Members& m = *members_;
  auto require_success = [&](cudaError_t error, const char* what) {
    if (error == cudaSuccess) [[likely]]
      return;
    cudaGetLastError();  // forgets an error that later calls would report again
    throw DeviceError(cat("cuda: kernel ", name, " of ", described(place), what, ", ", shape.blocks, " blocks of ", shape.threads, " threads with ",
                          shape.shared_bytes, " bytes of shared memory in clusters of ", shape.cluster, ": ", described(error)));
  };
  require_success(shape.blocks > std::numeric_limits<int>::max() ? cudaErrorInvalidConfiguration : cudaSuccess, " has too many blocks");
  require_success(m.allow_shared(function, shape.shared_bytes), " asks for too much shared memory");
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = m.stream;
  cudaLaunchAttribute cluster{};
  if (shape.cluster > 1) {
    if (shape.cluster > kPortableCluster)
      require_success(cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1), " asks for a large cluster");
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    config.attrs = &cluster;
    config.numAttrs = 1;
  }
  require_success(cudaLaunchKernelExC(&config, function, arguments), " was not launched");
  if (m.synchronous) require_success(cudaStreamSynchronize(m.stream), " failed");
}

bool Context::takes_cluster(const void* function, const Launch& shape) {
  if (shape.cluster <= kPortableCluster) return shape.cluster == 1 || architecture() >= 90;
  if (architecture() < 90 || shape.cluster > kLargestCluster) return false;
  const auto [known, is_new] = members_->clusters.try_emplace({function, shape.cluster, shape.threads, shape.shared_bytes}, false);
  if (is_new) {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(shape.cluster));
    config.blockDim = dim3(static_cast<unsigned>(shape.threads));
    config.dynamicSmemBytes = shape.shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int active = 0;
    known->second = cudaFuncSetAttribute(function, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) == cudaSuccess &&
                    members_->allow_shared(function, shape.shared_bytes) == cudaSuccess &&
                    cudaOccupancyMaxActiveClusters(&active, function, &config) == cudaSuccess && active > 0;
    if (!known->second) cudaGetLastError();  // forgets an error that later calls would report again
  }
  return known->second;
}

void* Context::allocate(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, std::max(bytes, kAlignment));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // forgets it
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    throw OutOfMemoryError(cat("cuda: out of memory, asked for ", bytes, " bytes, free are ", free, " of ", total));
  }
  check(error, "cudaMalloc", std::source_location::current());
  return memory;
}

void Context::release(void* memory) { cudaFree(memory); }  // at the end of the process there may be no device any more

void* Context::take_scratch(size_t bytes) {
  Members& m = *members_;
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  // Blocks that are too small are passed over until the mark is released; they stay, because graphs may hold them.
  for (; m.scratch_block < m.scratch.size(); ++m.scratch_block, m.scratch_offset = 0)
    if (m.scratch_offset + bytes <= m.scratch[m.scratch_block].bytes) break;
  if (m.scratch_block == m.scratch.size()) {
    size_t size = std::max(bytes, kSmallestScratch);
    if (!m.scratch.empty()) size = std::max(size, std::min(m.scratch.back().bytes, kLargestGrowth));
    m.scratch.push_back({static_cast<char*>(allocate(size)), size});
    m.scratch_offset = 0;
  }
  void* memory = m.scratch[m.scratch_block].memory + m.scratch_offset;
  m.scratch_offset += bytes;
  return memory;
}

size_t Context::scratch_mark() const { return members_->scratch_block << kOffsetBits | members_->scratch_offset; }
void Context::release_scratch(size_t mark) {
  members_->scratch_block = mark >> kOffsetBits;
  members_->scratch_offset = mark & kOffsetMask;
}

}  // namespace sinkgrad::cuda
