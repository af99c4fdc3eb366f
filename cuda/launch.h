// What a launch is made of, for both implementations of the kernel vocabulary.
#pragma once
#include <cstddef>
#include <cstdint>
#include <source_location>

namespace sinkgrad::cuda {

/// The size of a launch. Grids have one dimension, so that no other limit than 2^31 - 1 blocks exists.
struct Launch {
  int64_t blocks = 1;       ///< 0: nothing is launched
  int threads = 256;        ///< a multiple of 32
  size_t shared_bytes = 0;  ///< what SharedMemory hands out; more than 48 KiB is asked for on first use
  int cluster = 1;          ///< blocks per cluster (sm_90); blocks must be a multiple
};

/// A kernel with its name and place in the source, for error messages. Made by KERNEL(kernel<T>).
template <class... P>
struct Kernel {
  const char* name;
  void (*function)(P...);
  std::source_location place = std::source_location::current();
};
#define KERNEL(...) \
  ::sinkgrad::cuda::Kernel { #__VA_ARGS__, __VA_ARGS__ }

}  // namespace sinkgrad::cuda
