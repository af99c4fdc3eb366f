// The one file that calls cuDNN. Its batch norm subtracts a mean that was rounded, which costs as many digits as the mean is larger
// than the deviation. It therefore sees a copy of x relative to the first row: one pass more in each direction (a read and a write),
// and its mean is the one that the op keeps. What cuDNN itself does with (rows, channels) is 3 passes forward and 5 backward.
#include <cstdlib>
#include <string_view>

#include "cuda/cudnn.h"
#include "cuda/kernel.h"

namespace sinkgrad::cuda {

bool prefers_cudnn_batch_norm() {
  static const bool prefers = [] {
    const char* value = std::getenv("SINKGRAD_BATCH_NORM");
    const std::string_view wanted = value ? value : "own";
    require<DeviceError>(wanted == "own" || wanted == "cudnn", "SINKGRAD_BATCH_NORM must be own or cudnn, got '", wanted, "'");
    return wanted == "cudnn";
  }();
  return prefers;
}

}  // namespace sinkgrad::cuda

#if SINKGRAD_HAS_CUDNN
#include <cudnn.h>

#include "cuda/walk.h"

namespace sinkgrad::cuda {
namespace {

constexpr int64_t kFewest = 1 << 16, kMost = INT32_MAX;  // elements

void check(cudnnStatus_t status, const Shape& x) {
  require<DeviceError>(status == CUDNN_STATUS_SUCCESS, "batch norm: cuDNN refused ", x, ": ", cudnnGetErrorString(status));
}

/// Channels are innermost; rows are the height of one image, for the number of images is limited.
class Tensor4 {
 public:
  Tensor4(int64_t channels, int64_t rows, const Shape& x) {
    check(cudnnCreateTensorDescriptor(&descriptor_), x);
    check(cudnnSetTensor4dDescriptor(descriptor_, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, static_cast<int>(channels), static_cast<int>(rows), 1), x);
  }
  ~Tensor4() { cudnnDestroyTensorDescriptor(descriptor_); }
  Tensor4(const Tensor4&) = delete;
  Tensor4& operator=(const Tensor4&) = delete;
  operator cudnnTensorDescriptor_t() const { return descriptor_; }

 private:
  cudnnTensorDescriptor_t descriptor_ = nullptr;
};

struct Subtract {
  __device__ float operator()(float a, float b) const { return a - b; }
};
/// x relative to its first row.
Span<const float> relative(const View& x, int64_t channels, Scratch& scratch) {
  const Shape whole{x.shape.count() / channels, channels}, row{channels};
  const Span<float> to = scratch.take<float>(whole.count());
  map(Walk<3>(whole, {whole, whole, row}), Subtract{}, GradSpan<float>{to}, span<const float>(x), span<const float>(x).part(0, channels));
  return to;
}

/// From cuDNN's statistics, of x relative to its first row and unbiased, to those that the op keeps.
__global__ void keep_statistics(Span<const float> x, Span<const float> relative_mean, Span<const float> unbiased, float bias, Span<float> mean,
                                Span<float> variance) {
  for (int64_t j = thread_index(); j < mean.count; j += thread_count()) {
    mean[j] = x[j] + relative_mean[j];
    variance[j] = unbiased[j] * bias;
  }
}

__global__ void invert_deviation(Span<const float> variance, float epsilon, Span<float> inverse) {
  for (int64_t j = thread_index(); j < inverse.count; j += thread_count()) inverse[j] = 1.0f / sqrt(variance[j] + epsilon);
}

bool fits(DType dtype, int64_t rows, int64_t count) { return dtype == DType::f32 && rows > 1 && count >= kFewest && count <= kMost; }

}  // namespace

bool cudnn_batch_norm_forward(const Forward& f) {
  const Shape& shape = f.out.shape;
  const int64_t channels = shape[-1], rows = channels > 0 ? shape.count() / channels : 0;
  if (!fits(f.dtype(), rows, shape.count())) return false;
  if (context().launches_are_suppressed()) return true;
  Scratch scratch;
  const Span<const float> x = relative(f.in[0], channels, scratch);
  const Span<float> running = scratch.take<float>(2 * channels), inverse = scratch.take<float>(channels);
  fill(running, 0.0f);  // cuDNN multiplies the old values by zero
  const Tensor4 image(channels, rows, shape), statistics(channels, 1, shape);
  const float one = 1, zero = 0;
  check(cudnnBatchNormalizationForwardTraining(context().cudnn(), CUDNN_BATCHNORM_SPATIAL, &one, &zero, image, x.data, image, f.out.data, statistics,
                                               f.in[1].data, f.in[2].data, 1.0, running.data, running.part(channels, channels).data,
                                               f.attrs.get("epsilon"), f.saved[2].data, inverse.data),
        shape);
  const Span<const float> unbiased = running.part(channels, channels);
  launch(KERNEL(keep_statistics), grid_stride(channels), span<const float>(f.in[0]), span<const float>(f.saved[2]), unbiased,
         static_cast<float>(static_cast<double>(rows - 1) / static_cast<double>(rows)), span<float>(f.saved[0]), span<float>(f.saved[1]));
  return true;
}

bool cudnn_batch_norm_backward(const Backward& b) {
  const Shape& shape = b.out.shape;
  const int64_t channels = shape[-1], rows = channels > 0 ? shape.count() / channels : 0;
  if (!fits(b.dtype(), rows, shape.count()) || !b.in_grad[0]) return false;
  if (context().launches_are_suppressed()) return true;
  Scratch scratch;
  const Span<const float> x = relative(b.in[0], channels, scratch);
  const Span<float> inverse = scratch.take<float>(channels), gain_and_bias = scratch.take<float>(2 * channels);
  launch(KERNEL(invert_deviation), grid_stride(channels), span<const float>(b.saved[1]), static_cast<float>(b.attrs.get("epsilon")), inverse);
  const Tensor4 image(channels, rows, shape), statistics(channels, 1, shape);
  const float one = 1, zero = 0, old = b.in_grad[0].add ? 1 : 0;
  check(cudnnBatchNormalizationBackward(context().cudnn(), CUDNN_BATCHNORM_SPATIAL, &one, &old, &one, &zero, image, x.data, image, b.out_grad.data,
                                        image, b.in_grad[0].view.data, statistics, b.in[1].data, gain_and_bias.data,
                                        gain_and_bias.part(channels, channels).data, b.attrs.get("epsilon"), b.saved[2].data, inverse.data),
        shape);
  for (size_t k = 1; k <= 2; ++k)
    if (const Grad& g = b.in_grad[k]) {
      const Span<const float> sums = gain_and_bias.part(k == 1 ? 0 : channels, channels);
      copy(Walk<2>(g.view.shape, {g.view.shape, g.view.shape}), sums, span<float>(g));
    }
  return true;
}

}  // namespace sinkgrad::cuda

#else

namespace sinkgrad::cuda {
bool cudnn_batch_norm_forward(const Forward&) { return false; }
bool cudnn_batch_norm_backward(const Backward&) { return false; }
}  // namespace sinkgrad::cuda

#endif
