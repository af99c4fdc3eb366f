// Kernels that are wrong in other ways than races: each must be caught under every schedule, by a message that says where.
#include "simt/simt_test.h"

using namespace sinkgrad;
using namespace sinkgrad::cuda;
using simt::check_caught;
using simt::check_passes;
using simt::Fault;
using simt::span_of;

namespace {

enum class Bounds {
  shared,
  shared_below,
  shared_part,
  global,
  global_below,
  global_part,
  load_end,
  store_end,
  load_shared_end,
  copy_end,
  copy_from_end,
  peer
};
template <Bounds which>
__global__ void leave_bounds(Span<float> x) {
  STATIC_SHARED(float, s, 64);
  s[2 * threadIdx.x] = s[2 * threadIdx.x + 1] = 0.0f;
  warp_sync();
  if (threadIdx.x != 5) return;
  const Span<const float> source = x;
  Vector<float> v;
  for (float& a : v.x) a = 0;
  switch (which) {
    case Bounds::shared: s[64] = 1.0f; break;
    case Bounds::shared_below: v.x[0] = s[-1]; break;
    case Bounds::shared_part: v.x[0] = s.part(60, 5)[0]; break;
    case Bounds::global: v.x[0] = x[10]; break;
    case Bounds::global_below: x[-1] = 1.0f; break;
    case Bounds::global_part: v.x[0] = x.part(-1, 2)[0]; break;
    case Bounds::load_end: v = load_vector(source, 8); break;
    case Bounds::store_end: store_vector(x, 8, v); break;
    case Bounds::load_shared_end: v = load_vector(s, 64); break;
    case Bounds::copy_end: copy_async(s, 64, source, 0); break;
    case Bounds::copy_from_end: copy_async(s, 0, source, 8); break;
    case Bounds::peer: v.x[0] = cluster_peer(s, 1)[0]; break;
  }
  s[0] = v.x[0];
}

enum class Alignment { load, store, load_shared, copy, copy_from };
template <Alignment which>
__global__ void misalign(Span<float> x) {
  STATIC_SHARED(float, s, 64);
  if (threadIdx.x != 5) return;
  const Span<const float> source = x;
  const Vector<float> v{};
  switch (which) {
    case Alignment::load: s[0] = load_vector(source, 1).x[0]; break;
    case Alignment::store: store_vector(x, 6, v); break;
    case Alignment::load_shared: store_vector(s, 2, v); break;
    case Alignment::copy: copy_async(s, 3, source, 0); break;
    case Alignment::copy_from: copy_async(s, 0, source, 1); break;
  }
}

__global__ void diverge_at_shuffles(Span<float> y) {
  float v = 1;
  if (threadIdx.x < 16)
    v = warp_shuffle(v, 0);
  else
    v = warp_shuffle(v, 16);
  y[threadIdx.x] = v;
}
__global__ void diverge_on_one_line(Span<float> y) { y[threadIdx.x] = threadIdx.x < 16 ? warp_shuffle(1.0f, 0) : warp_shuffle(2.0f, 0); }
__global__ void diverge_at_words(Span<float> y) {
  if (threadIdx.x < 16)
    warp_sync();
  else
    y[threadIdx.x] = warp_any(true) ? 1.0f : 0.0f;
}
__global__ void diverge_at_barriers() {
  if (warp_index() == 0)
    block_sync();
  else
    block_sync();
}
__global__ void divergent_loop(Span<float> y) {
  float v = 1;
  for (unsigned i = 0; i < 1 + threadIdx.x / 16; ++i) v += warp_shuffle_xor(v, 1);
  y[threadIdx.x] = v;
}
__global__ void lock_up() {
  if (threadIdx.x < 16)
    block_sync();
  else
    warp_sync();
}
__global__ void lock_up_across_blocks() {
  if (cluster_rank() == 0 && warp_index() == 0)
    block_sync();
  else
    cluster_sync();
}
__global__ void exit_before_barrier() {
  if (threadIdx.x == 50) return;
  block_sync();
}
__global__ void exit_before_shuffle(Span<float> y) {
  if (threadIdx.x % 32 == 7) return;
  y[threadIdx.x] = warp_shuffle(1.0f, 0);
}
__global__ void exit_before_cluster_barrier() {
  if (cluster_rank() == 1) return;
  cluster_sync();
}
/// Whole warps may end early where only warps meet.
__global__ void warps_end_alone(Span<float> y) {
  if (warp_index() == 1) return;
  y[threadIdx.x] = warp_shuffle(1.0f, 0);
  warp_sync();
}

__global__ void read_unwritten_shared(Span<float> y) {
  STATIC_SHARED(float, s, 64);
  if (threadIdx.x != 9) s[threadIdx.x] = 1.0f;
  block_sync();
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void remember(Span<float> y, bool write) {
  STATIC_SHARED(float, s, 1);
  if (threadIdx.x != 0) return;
  if (write) s[0] = 1.0f;
  y[0] = s[0];
}
__global__ void write_half(Span<float> x) {
  if (threadIdx.x % 2 == 0) x[threadIdx.x] = 1.0f;
}
__global__ void read_one(Span<const float> x, Span<float> y, int64_t i) {
  if (threadIdx.x == 0) y[0] = x[i];
}

enum class Peer { right, before_begin, writes_before_begin, no_barrier_at_end };
template <Peer peer>
__global__ void ask_peer(Span<float> y) {
  STATIC_SHARED(float, s, 32);
  STATIC_SHARED(float, mailbox, 32);
  s[threadIdx.x] = 1.0f;
  const Shared<float> other = cluster_peer(s, 1 - cluster_rank());
  cluster_peer(mailbox, cluster_rank())[threadIdx.x] = 1.0f;  // its own: always there
  if constexpr (peer == Peer::writes_before_begin)
    if (cluster_rank() == 0) cluster_peer(mailbox, 1)[threadIdx.x] = 1.0f;
  if constexpr (peer != Peer::before_begin) cluster_sync();
  float v = 0;
  if (cluster_rank() == 0) v = other[threadIdx.x];
  if constexpr (peer != Peer::no_barrier_at_end) cluster_sync();
  y[thread_index()] = v;
}

__global__ void take_shared(int first, int second) {
  SharedMemory memory;
  memory.take<float>(first);
  memory.take<double>(second);
}
template <int floats>
__global__ void take_static() {
  STATIC_SHARED(float, s, floats);
  if (threadIdx.x == 0) s[0] = 1.0f;
}
template <class T>
__global__ void two_arrays(Span<T> y) {
  STATIC_SHARED(T, a, 32);
  STATIC_SHARED(T, b, 32);
  SharedMemory memory;
  const Shared<T> c = memory.take<T>(3), d = memory.take<T>(32);
  a[threadIdx.x] = T(1);
  b[threadIdx.x] = T(2);
  if (threadIdx.x < 3) c[threadIdx.x] = T(3);
  d[threadIdx.x] = T(4);
  y[threadIdx.x] = a[threadIdx.x] + 10 * b[threadIdx.x] + 100 * d[threadIdx.x];
}

__global__ void run_for_ever() {
  for (;;) block_sync();
}
__global__ void nothing() {}

const Launch kWarpLaunch{.blocks = 1, .threads = 32}, kBlockLaunch{.blocks = 1, .threads = 64};

/// Memory aligned to 16 bytes: 10 floats.
struct Aligned {
  alignas(16) float memory[10] = {};
  Span<float> span() { return {memory, 10}; }
};

}  // namespace

TEST_CASE("an index out of bounds is caught with its length") {
  Aligned x;
  auto caught = [&](const auto& kernel, const char* words) {
    check_caught(Fault::bounds, {"kernel leave_bounds<", "block 0 thread 5, tests/simt/simt_test_faults.cpp:", words},
                 [&] { launch(kernel, kWarpLaunch, x.span()); });
  };
  caught(KERNEL(leave_bounds<Bounds::shared>), "index 64 of a shared array of 64 elements");
  caught(KERNEL(leave_bounds<Bounds::shared_below>), "index -1 of a shared array of 64");
  caught(KERNEL(leave_bounds<Bounds::shared_part>), "part of elements 60..64 of a shared array of 64");
  caught(KERNEL(leave_bounds<Bounds::global>), "index 10 of a span of 10 elements");
  caught(KERNEL(leave_bounds<Bounds::global_below>), "index -1 of a span of 10");
  caught(KERNEL(leave_bounds<Bounds::global_part>), "part of elements -1..0 of a span of 10");
  caught(KERNEL(leave_bounds<Bounds::load_end>), "load_vector of elements 8..11 of a span of 10");
  caught(KERNEL(leave_bounds<Bounds::store_end>), "store_vector of elements 8..11 of a span of 10");
  caught(KERNEL(leave_bounds<Bounds::load_shared_end>), "load_vector of elements 64..67 of a shared array of 64");
  caught(KERNEL(leave_bounds<Bounds::copy_end>), "copy_async to of elements 64..67 of a shared array of 64");
  caught(KERNEL(leave_bounds<Bounds::copy_from_end>), "copy_async of elements 8..11 of a span of 10");
  caught(KERNEL(leave_bounds<Bounds::peer>), "cluster_peer 1 of a cluster of 1");
}

TEST_CASE("16 bytes at once must be aligned") {
  Aligned x;
  auto caught = [&](const auto& kernel, const char* words) {
    check_caught(Fault::alignment, {"kernel misalign<", "block 0 thread 5", words}, [&] { launch(kernel, kWarpLaunch, x.span()); });
  };
  caught(KERNEL(misalign<Alignment::load>), "load_vector at element 1 of a span");
  caught(KERNEL(misalign<Alignment::store>), "store_vector at element 6 of a span");
  caught(KERNEL(misalign<Alignment::load_shared>), "store_vector at element 2 of a shared array");
  caught(KERNEL(misalign<Alignment::copy>), "copy_async to at element 3 of a shared array");
  caught(KERNEL(misalign<Alignment::copy_from>), "copy_async at element 1 of a span");
}

TEST_CASE("lanes must meet at the same place") {
  std::vector<float> y(64);
  auto caught = [&](Fault fault, const std::vector<std::string>& words, auto&& kernel) {
    check_caught(fault, words, [&] { launch(kernel, kBlockLaunch, span_of(y)); });
  };
  caught(Fault::divergence, {"warp_shuffle at tests/simt/simt_test_faults.cpp:", "while block 0 thread ", "is at warp_shuffle, tests/simt/"},
         KERNEL(diverge_at_shuffles));
  caught(Fault::divergence, {"diverge_on_one_line"}, KERNEL(diverge_on_one_line));
  caught(Fault::divergence, {"warp_sync", "warp_ballot"}, KERNEL(diverge_at_words));
  caught(Fault::exited, {"divergent_loop"}, KERNEL(divergent_loop));
  check_caught(Fault::divergence, {"block_sync at "}, [&] { launch(KERNEL(diverge_at_barriers), kBlockLaunch); });
}

TEST_CASE("threads that wait for ever are caught") {
  check_caught(Fault::deadlock, {"waits for ever", "block_sync", "warp_sync"}, [&] { launch(KERNEL(lock_up), kWarpLaunch); });
  check_caught(Fault::deadlock, {"waits for ever", "cluster_sync", "block_sync"},
               [&] { launch(KERNEL(lock_up_across_blocks), {.blocks = 2, .threads = 64, .cluster = 2}); });
  check_caught(Fault::endless, {"run_for_ever", "does a loop never end?"}, [&] {
    simt::settings().max_switches = 10000;
    launch(KERNEL(run_for_ever), kBlockLaunch);
  });
}

TEST_CASE("threads that have ended meet nobody") {
  std::vector<float> y(64);
  check_caught(Fault::exited, {"block 0 thread 50", "block_sync"}, [&] { launch(KERNEL(exit_before_barrier), kBlockLaunch); });
  check_caught(Fault::exited, {"thread 7", "warp_shuffle"}, [&] { launch(KERNEL(exit_before_shuffle), kWarpLaunch, span_of(y)); });
  check_caught(Fault::exited, {"cluster_sync", "block 1 thread "},
               [&] { launch(KERNEL(exit_before_cluster_barrier), {.blocks = 2, .threads = 32, .cluster = 2}); });
  check_passes([&] { launch(KERNEL(warps_end_alone), kBlockLaunch, span_of(y)); });
}

TEST_CASE("what nothing has written is not read") {
  std::vector<float> y(64);
  check_caught(Fault::uninitialised, {"read_unwritten_shared", "block 0 thread 9", "element 9 of shared memory"},
               [&] { launch(KERNEL(read_unwritten_shared), kBlockLaunch, span_of(y)); });
  check_caught(Fault::uninitialised, {"element 0 of shared memory"}, [&] {  // another launch's memory is not this one's
    launch(KERNEL(remember), kWarpLaunch, span_of(y), true);
    launch(KERNEL(remember), kWarpLaunch, span_of(y), false);
  });
  check_caught(Fault::uninitialised, {"element 3 of scratch memory"}, [&] {
    Scratch scratch;
    const Span<float> s = scratch.take<float>(32);
    launch(KERNEL(write_half), kWarpLaunch, s);
    launch(KERNEL(read_one), kWarpLaunch, Span<const float>(s), span_of(y), int64_t{3});
  });
}

TEST_CASE("shared memory of another block is there between its cluster barriers only") {
  std::vector<float> y(64);
  const Launch shape{.blocks = 2, .threads = 32, .cluster = 2};
  check_passes([&] { launch(KERNEL(ask_peer<Peer::right>), shape, span_of(y)); });
  check_caught(Fault::cluster_exit, {"element ", "the shared memory of block ", "may not have begun"},
               [&] { launch(KERNEL(ask_peer<Peer::before_begin>), shape, span_of(y)); });
  check_caught(Fault::cluster_exit, {"may not have begun"}, [&] { launch(KERNEL(ask_peer<Peer::writes_before_begin>), shape, span_of(y)); });
  check_caught(Fault::cluster_exit, {"element ", "block 0 thread ", "cluster_sync must come between"},
               [&] { launch(KERNEL(ask_peer<Peer::no_barrier_at_end>), shape, span_of(y)); });
}

TEST_CASE("shared memory must have been asked for") {
  std::vector<double> y(32);
  auto shape = [](size_t bytes) { return Launch{.blocks = 1, .threads = 32, .shared_bytes = bytes}; };
  const size_t bytes = shared_bytes<float>(3) + shared_bytes<double>(5);
  check_passes([&] { launch(KERNEL(take_shared), shape(bytes), 3, 5); });
  check_caught(Fault::shared_size, {"hands out 64 bytes", "asked for 63"}, [&] { launch(KERNEL(take_shared), shape(bytes - 1), 3, 5); });
  check_passes([&] { launch(KERNEL(take_static<12 * 1024>), kWarpLaunch); });
  check_caught(Fault::shared_size, {"exceed the limit"}, [&] { launch(KERNEL(take_static<12 * 1024 + 1>), kWarpLaunch); });
  check_caught(Fault::shared_size, {"exceed the limit"}, [&] { launch(KERNEL(take_static<12 * 1024>), shape(simt::settings().shared_limit)); });
  check_passes([&] {
    launch(KERNEL(two_arrays<double>), shape(shared_bytes<double>(3) + shared_bytes<double>(32)), span_of(y));
    CHECK(y[31] == 421);
  });
}

TEST_CASE("a launch that a GPU would refuse is refused") {
  auto refused = [](const Launch& shape, const char* words) {
    check_caught(Fault::launch, {"kernel nothing, launched at ", words}, [&] { launch(KERNEL(nothing), shape); });
  };
  refused({.blocks = 1, .threads = 0}, "whole warps, got 0");
  refused({.blocks = 1, .threads = 33}, "whole warps, got 33");
  refused({.blocks = 1, .threads = 1056}, "32 to 1024 threads");
  refused({.blocks = -1, .threads = 32}, "2^31 - 1 blocks, got -1");
  refused({.blocks = int64_t{1} << 31, .threads = 32}, "2^31 - 1 blocks");
  refused({.blocks = 1, .threads = 32, .shared_bytes = (227 << 10) + 1}, "at most 232448 bytes, got 232449");
  refused({.blocks = 3, .threads = 32, .cluster = 2}, "multiple of the cluster");
  refused({.blocks = 17, .threads = 32, .cluster = 17}, "1 to 16 blocks, got 17");
  check_passes([] { launch(KERNEL(nothing), {.blocks = 0, .threads = 0}); });  // nothing is launched
  check_passes([] { launch(KERNEL(nothing), {.blocks = 8, .threads = 1024, .cluster = 8}); });
  simt::SettingsScope scope;
  simt::settings().architecture = 80;
  refused({.blocks = 2, .threads = 32, .cluster = 2}, "sm_90, got 80");
}
