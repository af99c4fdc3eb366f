// Batch norm of whole batches from cuDNN: cuda/cudnn.cu alone calls it. Optional: without cuDNN everything here declines.
#pragma once
#include "core/op.h"

namespace sinkgrad::cuda {

/// Whether SINKGRAD_BATCH_NORM asks for cuDNN; the kernels of cuda/norm.cu move less memory: 3 passes over x against 5 forward, 5 against 7
/// backward. DeviceError for a value other than "own" and "cudnn".
bool prefers_cudnn_batch_norm();

// The op batch_norm_train, as its own kernels compute it. Each returns false, having done nothing, where cuDNN does not fit: f64, few
// elements, more than cuDNN can count, a backward without the gradient of x.
bool cudnn_batch_norm_forward(const Forward& f);
bool cudnn_batch_norm_backward(const Backward& b);

}  // namespace sinkgrad::cuda
