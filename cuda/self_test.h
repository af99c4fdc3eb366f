// Whether kernels run at all: a build for other GPUs may start and silently write nothing.
#pragma once
#include <string>

#include "core/device.h"

namespace sinkgrad::cuda {

/// Writes 0 .. 255 with a kernel and reads them back; empty when they are there, else what went wrong.
std::string self_test(Backend& backend);

}  // namespace sinkgrad::cuda
