// The one GPU of this process: its stream, library handles, scratch memory and limits. Every kernel and every copy of sinkgrad runs on
// the context's stream, so they are ordered without further synchronisation. One thread at a time uses it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>

#include "core/device.h"
#include "cuda/launch.h"

struct CUstream_st;
struct cublasContext;
struct cublasLtContext;
struct cudnnContext;

namespace sinkgrad::cuda {

class Context {
 public:
  /// A stream on a GPU that can be used (see cuda/opening.h); throws DeviceError.
  explicit Context(int index);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  CUstream_st* stream() const;
  // Library handles on the stream, made when first asked for.
  cublasContext* cublas();
  cublasLtContext* cublas_lt();
  cudnnContext* cudnn();

  /// Throws DeviceError with kernel, grid, block and place when the launch is refused.
  void launch(const void* function, const char* name, const std::source_location& place, const Launch& shape, void** arguments);
  /// Whether the blocks of such a launch can run together as one cluster. More than 8 depend on the device and on what a block needs.
  bool takes_cluster(const void* function, const Launch& shape);
  /// While a training step is only traced, to see whether its graph may be replayed, nothing runs.
  bool launches_are_suppressed() const { return suppressed_; }
  void suppress_launches(bool on) { suppressed_ = on; }
  /// Whether the host waits after each launch, so that an error in a kernel is told by its own launch; SINKGRAD_CUDA_SYNCHRONOUS=1 sets it.
  bool synchronous() const;
  void set_synchronous(bool on);

  int multiprocessors() const;
  /// Shared memory one block may ask for, in bytes.
  size_t shared_limit() const;
  /// 80 for sm_80, 90 for sm_90.
  int architecture() const;

  /// 256-byte aligned device memory; throws OutOfMemoryError with the bytes asked for and those that are free.
  void* allocate(size_t bytes);
  void release(void* memory);
  /// Device memory of the kernel family that is being launched: a stack, see Scratch. It never moves, so graphs may hold it.
  void* take_scratch(size_t bytes);
  size_t scratch_mark() const;
  void release_scratch(size_t mark);

  /// Makes this GPU the current one of the calling thread; context() does so.
  void use_in_this_thread();

 private:
  struct Members;
  std::unique_ptr<Members> members_;
  bool suppressed_ = false;
};

/// The context of the device opened by Device::cuda(); throws DeviceError before that.
Context& context();
inline int multiprocessors() { return context().multiprocessors(); }
inline size_t shared_limit() { return context().shared_limit(); }
inline int architecture() { return context().architecture(); }

template <class T>
struct Span;

/// Device memory between the launches of one op, given back when the scope ends (the stream keeps later users behind earlier ones).
/// Uninitialised. Only one scope takes at a time: a nested one must end before the outer one takes again.
class Scratch {
 public:
  Scratch() : mark_(context().scratch_mark()) {}
  ~Scratch() { context().release_scratch(mark_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <class T>
  Span<T> take(int64_t count) {
    return {static_cast<T*>(context().take_scratch(static_cast<size_t>(count) * sizeof(T))), count};
  }

 private:
  size_t mark_;
};

}  // namespace sinkgrad::cuda
