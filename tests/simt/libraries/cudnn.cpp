// Stand-in for cuDNN: batch norm with channels innermost, in f32 with sums in f64. Like the library it subtracts a mean rounded to f32
// from x as it is, blends results with what was there only for a factor that is not zero, and multiplies running statistics by 1 - factor
// whatever they are.
#include "cudnn.h"

#include <cmath>
#include <vector>

#include "core/check.h"
#include "simt/executor.h"
#include "simt/stream.h"

struct cudnnContext {};
struct cudnnTensorStruct {
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  int n = 0, c = 0, h = 0, w = 0;
  bool operator==(const cudnnTensorStruct&) const = default;
};

namespace {

using namespace sinkgrad;

void demand(bool ok, const char* call, const char* sentence) {
  if (!ok) simt::fail(cat(call, ": ", sentence));
}

struct Sizes {
  int64_t rows, channels;
};
/// Checks what both directions share. `per_channel` are pointers to one float for each channel.
Sizes sizes(const char* call, cudnnHandle_t handle, cudnnBatchNormMode_t mode, const cudnnTensorStruct& x, const cudnnTensorStruct& y,
            const cudnnTensorStruct& statistics, double epsilon, std::initializer_list<const void*> pointers) {
  demand(handle != nullptr, call, "the handle is null");
  demand(mode == CUDNN_BATCHNORM_SPATIAL, call, "only statistics per channel are modelled");
  demand(x == y && x.format == CUDNN_TENSOR_NHWC, call, "images must be alike, channels innermost");
  demand(statistics.n == 1 && statistics.c == x.c && statistics.h == 1 && statistics.w == 1, call, "statistics must be (1, C, 1, 1)");
  demand(epsilon >= CUDNN_BN_MIN_EPSILON, call, "epsilon is too small");
  for (const void* p : pointers) {
    demand(p != nullptr, call, "a pointer is null");
    demand(reinterpret_cast<uintptr_t>(p) % sizeof(float) == 0, call, "a pointer is not aligned to its elements");
  }
  return {int64_t{x.n} * x.h * x.w, x.c};
}

float blended(float alpha, double value, float beta, float old) { return static_cast<float>(alpha * value + (beta == 0 ? 0 : beta * old)); }
float scalar(const void* p) { return *static_cast<const float*>(p); }

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t) { return CUDNN_STATUS_SUCCESS; }
const char* cudnnGetErrorString(cudnnStatus_t status) { return status == CUDNN_STATUS_SUCCESS ? "success" : "not supported"; }

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensorDesc) {
  *tensorDesc = new cudnnTensorStruct;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensorDesc) {
  delete tensorDesc;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensorDesc, cudnnTensorFormat_t format, cudnnDataType_t, int n, int c, int h,
                                         int w) {
  demand(n > 0 && c > 0 && h > 0 && w > 0, __func__, "sizes must be positive");
  *tensorDesc = {format, n, c, h, w};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBatchNormalizationForwardTraining(cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alpha, const void* beta,
                                                     const cudnnTensorDescriptor_t xDesc, const void* x, const cudnnTensorDescriptor_t yDesc, void* y,
                                                     const cudnnTensorDescriptor_t bnScaleBiasMeanVarDesc, const void* bnScale, const void* bnBias,
                                                     double exponentialAverageFactor, void* resultRunningMean, void* resultRunningVariance,
                                                     double epsilon, void* resultSaveMean, void* resultSaveInvVariance) {
  const auto [rows, channels] = sizes(__func__, handle, mode, *xDesc, *yDesc, *bnScaleBiasMeanVarDesc, epsilon,
                                      {x, y, bnScale, bnBias, resultRunningMean, resultRunningVariance, resultSaveMean, resultSaveInvVariance});
  const auto *in = static_cast<const float*>(x), *gain = static_cast<const float*>(bnScale), *bias = static_cast<const float*>(bnBias);
  const auto old_part = static_cast<float>(1 - exponentialAverageFactor), new_part = static_cast<float>(exponentialAverageFactor);
  simt::enqueue([=, rows = rows, channels = channels, alpha = scalar(alpha), beta = scalar(beta)] {
    for (int64_t j = 0; j < channels; ++j) {
      double sum = 0, squares = 0;
      for (int64_t r = 0; r < rows; ++r) sum += in[r * channels + j];
      const auto mean = static_cast<float>(sum / static_cast<double>(rows));
      for (int64_t r = 0; r < rows; ++r) squares += std::pow(static_cast<double>(in[r * channels + j]) - sum / static_cast<double>(rows), 2);
      const auto inverse = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(rows) + epsilon));
      for (int64_t r = 0; r < rows; ++r) {
        float& to = static_cast<float*>(y)[r * channels + j];
        to = blended(alpha, (in[r * channels + j] - mean) * inverse * gain[j] + bias[j], beta, to);
      }
      auto running = [&](void* at, double value) {
        float& to = static_cast<float*>(at)[j];
        to = to * old_part + static_cast<float>(value) * new_part;
      };
      running(resultRunningMean, mean);
      running(resultRunningVariance, squares / static_cast<double>(rows > 1 ? rows - 1 : 1));
      static_cast<float*>(resultSaveMean)[j] = mean;
      static_cast<float*>(resultSaveInvVariance)[j] = inverse;
    }
  });
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBatchNormalizationBackward(cudnnHandle_t handle, cudnnBatchNormMode_t mode, const void* alphaDataDiff, const void* betaDataDiff,
                                              const void* alphaParamDiff, const void* betaParamDiff, const cudnnTensorDescriptor_t xDesc,
                                              const void* x, const cudnnTensorDescriptor_t dyDesc, const void* dy,
                                              const cudnnTensorDescriptor_t dxDesc, void* dx, const cudnnTensorDescriptor_t dBnScaleBiasDesc,
                                              const void* bnScale, void* dBnScaleResult, void* dBnBiasResult, double epsilon, const void* savedMean,
                                              const void* savedInvVariance) {
  demand(*dyDesc == *dxDesc, __func__, "images must be alike, channels innermost");
  const auto [rows, channels] = sizes(__func__, handle, mode, *xDesc, *dyDesc, *dBnScaleBiasDesc, epsilon,
                                      {x, dy, dx, bnScale, dBnScaleResult, dBnBiasResult, savedMean, savedInvVariance});
  const auto *in = static_cast<const float*>(x), *out = static_cast<const float*>(dy);
  simt::enqueue([=, rows = rows, channels = channels, alpha = scalar(alphaDataDiff), beta = scalar(betaDataDiff),
                 alpha_channel = scalar(alphaParamDiff), beta_channel = scalar(betaParamDiff)] {
    for (int64_t j = 0; j < channels; ++j) {
      const float mean = static_cast<const float*>(savedMean)[j], inverse = static_cast<const float*>(savedInvVariance)[j];
      double sum = 0, sum_z = 0;
      for (int64_t r = 0; r < rows; ++r) {
        sum += out[r * channels + j];
        sum_z += out[r * channels + j] * ((in[r * channels + j] - mean) * inverse);
      }
      const double scale = static_cast<const float*>(bnScale)[j] * inverse, n = static_cast<double>(rows);
      for (int64_t r = 0; r < rows; ++r) {
        const float z = (in[r * channels + j] - mean) * inverse;
        float& to = static_cast<float*>(dx)[r * channels + j];
        to = blended(alpha, scale * (out[r * channels + j] - sum / n - z * sum_z / n), beta, to);
      }
      float &gain = static_cast<float*>(dBnScaleResult)[j], &bias = static_cast<float*>(dBnBiasResult)[j];
      gain = blended(alpha_channel, sum_z, beta_channel, gain);
      bias = blended(alpha_channel, sum, beta_channel, bias);
    }
  });
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
