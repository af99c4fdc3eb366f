// Parallel loops with fixed chunks (results do not depend on the number of threads) and per-thread scratch memory.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace sinkgrad {

/// Threads used by parallel loops from now on; at least 1.
void set_threads(int n);
int threads();
/// Threads that a loop started here would run on: 1 inside another loop.
int threads_of_loop();

namespace detail {
void run_chunks(int64_t chunks, void (*body)(void*, int64_t), void* context);
}

/// Calls body(chunk) for chunk = 0 .. chunks-1, in any order, on several threads. The body must not throw.
template <class F>
void parallel_chunks(int64_t chunks, F&& body) {
  if (chunks == 1) return body(int64_t{0});
  detail::run_chunks(
      chunks, [](void* f, int64_t c) { (*static_cast<std::remove_reference_t<F>*>(f))(c); }, &body);
}

/// Calls body(begin, end) for consecutive ranges of `grain` indices that cover 0 .. count-1.
template <class F>
void parallel_for(int64_t count, int64_t grain, F&& body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (count <= grain) return body(int64_t{0}, count);
  parallel_chunks((count + grain - 1) / grain, [&](int64_t c) { body(c * grain, std::min(count, (c + 1) * grain)); });
}

/// The range size that makes a chunk of a loop worth a thread, given the cost of one index in elementary operations.
inline int64_t grain_for(int64_t cost_per_index) { return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, cost_per_index)); }

/// Scratch memory of the calling thread, given back when the scope ends. After warm-up nothing is allocated.
class ScratchScope {
 public:
  ScratchScope();
  ~ScratchScope();
  ScratchScope(const ScratchScope&) = delete;
  ScratchScope& operator=(const ScratchScope&) = delete;
  /// Uninitialised memory for n elements, 64-byte aligned.
  template <class T>
  T* take(int64_t n) {
    return static_cast<T*>(take_bytes(static_cast<size_t>(n) * sizeof(T)));
  }

 private:
  void* take_bytes(size_t bytes);
  size_t block_, offset_;
};

}  // namespace sinkgrad
