// Sums over the GPUs of a job by NCCL, on a stream of their own beside the kernels of backward. Compiled where CMake finds nccl.h.
#if SINKGRAD_HAS_NCCL
#include "core/communicator.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include "cuda/check.h"
#include "cuda/context.h"

namespace sinkgrad::cuda {
namespace {

void check(ncclResult_t result, const char* call) {
  require<DeviceError>(result == ncclSuccess, "nccl: ", call, " failed: ", ncclGetErrorString(result));
}
#define NCCL_CHECK(call) check(call, #call)

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(const Meeting& meeting) {
    ncclUniqueId id{};
    if (meeting.rank == 0) NCCL_CHECK(ncclGetUniqueId(&id));
    meeting.share(&id, sizeof id);
    context().use_in_this_thread();
    CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    NCCL_CHECK(ncclCommInitRank(&job_, meeting.size, id, meeting.rank));
  }
  ~NcclCommunicator() override {
    ncclCommDestroy(job_);
    cudaEventDestroy(event_);
    cudaStreamDestroy(stream_);
  }

  void start_sum(const View& values) override {
    let_wait(stream_, context().stream());
    NCCL_CHECK(ncclAllReduce(values.data, values.data, static_cast<size_t>(values.shape.count()), ncclFloat, ncclSum, job_, stream_));
  }
  void finish_sums() override { let_wait(context().stream(), stream_); }

 private:
  /// What `later` is asked for from now on comes after what `earlier` was asked for.
  void let_wait(cudaStream_t later, cudaStream_t earlier) {
    CUDA_CHECK(cudaEventRecord(event_, earlier));
    CUDA_CHECK(cudaStreamWaitEvent(later, event_, 0));
  }

  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  ncclComm_t job_ = nullptr;
};

std::unique_ptr<Communicator> open(const Meeting& meeting) { return std::make_unique<NcclCommunicator>(meeting); }

[[maybe_unused]] const bool registered = register_cuda_communicator(open);

}  // namespace
}  // namespace sinkgrad::cuda
#endif
