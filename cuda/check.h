// CUDA_CHECK(call): throws DeviceError with the call, its place and the library's words unless the call succeeded.
#pragma once
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <source_location>
#include <string>

#include "core/check.h"

namespace sinkgrad::cuda {

/// "cuda/softmax.cu:53", wherever the sources lay when they were compiled.
inline std::string described(const std::source_location& place) {
  std::string file = place.file_name();
  if (const auto at = file.rfind("cuda/"); at != std::string::npos) file.erase(0, at);
  return cat(file, ":", place.line());
}

/// "out of memory (cudaErrorMemoryAllocation)", and what to do where the error is not this call's own.
inline std::string described(cudaError_t error) {
  std::string text = cat(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  // After one of these every call fails with it.
  if (error == cudaErrorIllegalAddress || error == cudaErrorMisalignedAddress || error == cudaErrorLaunchFailure || error == cudaErrorAssert ||
      error == cudaErrorIllegalInstruction || error == cudaErrorInvalidAddressSpace || error == cudaErrorInvalidPc)
    text += "; a kernel launched earlier has failed, SINKGRAD_CUDA_SYNCHRONOUS=1 tells which";
  return text;
}

inline void check(cudaError_t error, const char* call, const std::source_location& place) {
  if (error == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // forgets an error that later calls would report again
  throw DeviceError(cat("cuda: ", call, " failed at ", described(place), ": ", described(error)));
}
inline void check(cublasStatus_t status, const char* call, const std::source_location& place) {
  require<DeviceError>(status == CUBLAS_STATUS_SUCCESS, "cuda: ", call, " failed at ", described(place), ": ", cublasGetStatusString(status));
}

#define CUDA_CHECK(call) ::sinkgrad::cuda::check(call, #call, std::source_location::current())

}  // namespace sinkgrad::cuda
