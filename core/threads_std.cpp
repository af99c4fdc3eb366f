// Parallel loops on std::thread, the same chunks: for ThreadSanitizer, which does not see how OpenMP's runtime
// synchronises and reports races that are none. Starting threads for each loop is slow; cmake/sanitize.cmake chooses the file.
#include <algorithm>
#include <thread>
#include <vector>

#include "core/parallel.h"

namespace sinkgrad {
namespace {

// Of the calling thread, like OpenMP's.
thread_local int g_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
thread_local bool g_in_loop = false;

}  // namespace

void set_threads(int n) { g_threads = std::max(1, n); }
int threads() { return g_threads; }
int threads_of_loop() { return g_in_loop ? 1 : g_threads; }

namespace detail {
void run_chunks(int64_t chunks, void (*body)(void*, int64_t), void* context) {
  const int64_t n = std::min<int64_t>(threads_of_loop(), chunks);
  if (n == 1) {
    for (int64_t c = 0; c < chunks; ++c) body(context, c);
    return;
  }
  const auto share = [&](int64_t t) {
    g_in_loop = true;
    for (int64_t c = t * chunks / n; c < (t + 1) * chunks / n; ++c) body(context, c);
    g_in_loop = false;
  };
  std::vector<std::thread> others;
  for (int64_t t = 1; t < n; ++t) others.emplace_back(share, t);
  share(0);
  for (std::thread& other : others) other.join();
}
}  // namespace detail

}  // namespace sinkgrad
