// Kernels that lack a barrier: each must be reported as a race that names kernel, element and both threads, in whatever order the
// threads run and whatever the values.
#include "cuda/reduce.h"
#include "simt/simt_test.h"

using namespace sinkgrad;
using namespace sinkgrad::cuda;
using simt::check_caught;
using simt::check_passes;
using simt::Fault;
using simt::span_of;

namespace {

/// Which barrier a kernel leaves out.
enum class Missing { none, first, second };

template <Missing missing>
__global__ void rotate_block(Span<float> y) {
  STATIC_SHARED(float, s, 64);
  for (int round = 0; round < 3; ++round) {
    s[threadIdx.x] = 1.0f;  // always the same value: wrong results cannot betray a race
    if constexpr (missing != Missing::first) block_sync();
    y[threadIdx.x] = s[(threadIdx.x + 32) % 64];
    if constexpr (missing != Missing::second) block_sync();
  }
}

template <Missing missing>
__global__ void rotate_warp(Span<float> y) {
  STATIC_SHARED(float, s, 64);
  for (int round = 0; round < 3; ++round) {
    s[threadIdx.x] = 1.0f;
    if constexpr (missing != Missing::first) warp_sync();
    y[threadIdx.x] = s[warp_index() * 32 + (lane_index() + 1) % 32];
    if constexpr (missing != Missing::second) warp_sync();
  }
}

template <Missing missing>
__global__ void rotate_cluster(Span<float> y) {
  STATIC_SHARED(float, s, 32);
  s[threadIdx.x] = 1.0f;
  cluster_sync();
  for (int round = 0; round < 3; ++round) {
    const float v = cluster_peer(s, (cluster_rank() + 1) % cluster_size())[threadIdx.x];
    if constexpr (missing != Missing::first) cluster_sync();
    s[threadIdx.x] = v;
    if constexpr (missing != Missing::second) cluster_sync();
  }
  cluster_sync();
  y[thread_index()] = s[threadIdx.x];
}

/// A barrier of the warp where one of the block is needed.
__global__ void too_small_a_barrier(Span<float> y) {
  STATIC_SHARED(float, s, 64);
  s[threadIdx.x] = 1.0f;
  warp_sync();
  y[threadIdx.x] = s[63 - threadIdx.x];
}

__global__ void all_write(Span<float> y) {
  STATIC_SHARED(float, s, 1);
  s[0] = 1.0f;
  block_sync();
  if (threadIdx.x == 0) y[0] = s[0];
}

/// Shuffles order no memory.
__global__ void shuffle_is_no_barrier(Span<float> y) {
  STATIC_SHARED(float, s, 32);
  s[threadIdx.x] = 1.0f;
  const float v = warp_shuffle(1.0f, 0);
  y[threadIdx.x] = v + s[31 - threadIdx.x];
}

/// Many read, also in another block of the cluster; the writer has met only its own block.
__global__ void far_reader(Span<float> y, int order) {
  STATIC_SHARED(float, s, 4);
  if (threadIdx.x == 0) s[0] = 1.0f;
  cluster_sync();
  float v = 0;
  if (cluster_rank() == 0 || order == 0) v = cluster_peer(s, 0)[0];
  block_sync();
  if (cluster_rank() == 1 && order == 1) v = cluster_peer(s, 0)[0];
  if (cluster_rank() == 0 && threadIdx.x == 40) s[0] = 2.0f;
  cluster_sync();
  y[thread_index()] = v;
}

/// Later reads of one warp must not hide the read of the other, which the write does not know of.
__global__ void hidden_reader(Span<float> y) {
  STATIC_SHARED(float, s, 1);
  if (threadIdx.x == 0) s[0] = 1.0f;
  block_sync();
  float v = 0;
  if (threadIdx.x == 32 || threadIdx.x == 0) v = s[0];
  if (warp_index() == 0) {
    warp_sync();
    if (threadIdx.x == 1) v = s[0];
    warp_sync();
    if (threadIdx.x == 2) s[0] = 2.0f;
  }
  y[threadIdx.x] = v;
}

__global__ void blocks_meet_in_memory(Span<float> y, bool both_write) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0 || both_write) y[5] = 1.0f;
  if (blockIdx.x == 1 && !both_write) y[1] = y[5];
}

__global__ void warps_meet_in_memory(Span<double> y) {
  if (threadIdx.x == 3) y[7] = 1.0;
  if (threadIdx.x == 40) y[1] = y[7];
}

/// Reads of the same element by all, a write behind the barrier: right.
__global__ void many_readers(Span<float> y) {
  STATIC_SHARED(float, s, 1);
  if (threadIdx.x == 0) s[0] = 1.0f;
  block_sync();
  float v = 0;
  for (int i = 0; i < 4; ++i) v += s[0];
  block_sync();
  if (threadIdx.x == 33) s[0] = v;
  block_sync();
  y[threadIdx.x] = s[0];
}

/// Stages of a pipeline; each wait leaves `pending` copies on their way.
template <int pending, bool sync_after_wait, bool sync_before_copy>
__global__ void pipeline(Span<const float> x, Span<float> y, int tiles) {
  STATIC_SHARED(float, s, 2 * 256);
  const int me = static_cast<int>(threadIdx.x), at = 4 * me;
  auto load = [&](int tile) {
    copy_async(s, tile % 2 * 256 + at, x, tile * 256 + at);
    copy_async_commit();
  };
  load(0);
  float sum = 0;
  for (int tile = 0; tile < tiles; ++tile) {
    if (tile + 1 < tiles) {
      load(tile + 1);
      copy_async_wait<pending>();
    } else {
      copy_async_wait<0>();
    }
    if constexpr (sync_after_wait) block_sync();
    sum += s[tile % 2 * 256 + (at + 128) % 256];
    if constexpr (sync_before_copy) block_sync();
  }
  y[me] = sum;
}

enum class CopyMistake { no_wait, no_commit, never_waits, source_changes, own_overwrite, reads_again };
template <CopyMistake mistake>
__global__ void copy_wrongly(Span<float> x, Span<float> y) {
  STATIC_SHARED(float, s, 128);
  const int at = 4 * static_cast<int>(threadIdx.x);
  const Span<const float> source = x;
  if constexpr (mistake == CopyMistake::reads_again) {
    s[at] = 0.0f;
    y[threadIdx.x] = s[at];
  }
  copy_async(s, at, source, at);
  if constexpr (mistake != CopyMistake::no_commit) copy_async_commit();
  if constexpr (mistake == CopyMistake::source_changes) {
    block_sync();
    x[127 - at] = 2.0f;
    block_sync();
  }
  if constexpr (mistake == CopyMistake::own_overwrite) s[at] = 0.0f;
  if constexpr (mistake == CopyMistake::no_commit || mistake == CopyMistake::source_changes) copy_async_wait<0>();
  if constexpr (mistake != CopyMistake::never_waits) y[threadIdx.x] = s[at];
}

std::vector<float> values(size_t n) { return std::vector<float>(n, 1.0f); }

}  // namespace

TEST_CASE("a missing block barrier is a race") {
  auto y = values(64);
  const Launch shape{.blocks = 1, .threads = 64};
  check_passes([&] { launch(KERNEL(rotate_block<Missing::none>), shape, span_of(y)); });
  check_caught(Fault::race, {"kernel rotate_block<Missing::first>", "element ", "shared memory", "block 0 thread ", "simt_test_races.cpp:"},
               [&] { launch(KERNEL(rotate_block<Missing::first>), shape, span_of(y)); });
  check_caught(Fault::race, {"rotate_block<Missing::second>"}, [&] { launch(KERNEL(rotate_block<Missing::second>), shape, span_of(y)); });
  check_caught(Fault::race, {"all_write", "writes element 0", "wrote"}, [&] { launch(KERNEL(all_write), shape, span_of(y)); });
  check_caught(Fault::race, {"too_small"}, [&] { launch(KERNEL(too_small_a_barrier), shape, span_of(y)); });
  check_passes([&] { launch(KERNEL(many_readers), shape, span_of(y)); });
  check_caught(Fault::race, {"block 0 thread 2", "block 0 thread 32"}, [&] { launch(KERNEL(hidden_reader), shape, span_of(y)); });
}

TEST_CASE("a race names both threads, the element and the place") {
  auto y = std::vector<double>(8);
  simt::under_every_schedule([&] {
    const auto e = simt::error_of([&] { launch(KERNEL(warps_meet_in_memory), {.blocks = 1, .threads = 64}, span_of(y)); });
    REQUIRE(e);
    INFO(e->what());
    CHECK(e->fault == Fault::race);
    for (const char* word : {"kernel warps_meet_in_memory, ", "block 0 thread 3", "block 0 thread 40", "element 7 of global memory"})
      CHECK_THAT(e->what(), Catch::Contains(word));
  });
}

TEST_CASE("a missing warp barrier is a race") {
  auto y = values(64);
  const Launch shape{.blocks = 1, .threads = 64};
  check_passes([&] { launch(KERNEL(rotate_warp<Missing::none>), shape, span_of(y)); });
  check_caught(Fault::race, {"rotate_warp"}, [&] { launch(KERNEL(rotate_warp<Missing::first>), shape, span_of(y)); });
  check_caught(Fault::race, {"rotate_warp"}, [&] { launch(KERNEL(rotate_warp<Missing::second>), shape, span_of(y)); });
  check_caught(Fault::race, {"shuffle_is_no_barrier"}, [&] { launch(KERNEL(shuffle_is_no_barrier), {.blocks = 1, .threads = 32}, span_of(y)); });
}

TEST_CASE("a missing cluster barrier is a race") {
  auto y = values(128);
  const Launch shape{.blocks = 4, .threads = 32, .cluster = 4};
  check_passes([&] { launch(KERNEL(rotate_cluster<Missing::none>), shape, span_of(y)); });
  check_caught(Fault::race, {"rotate_cluster", "block "}, [&] { launch(KERNEL(rotate_cluster<Missing::first>), shape, span_of(y)); });
  check_caught(Fault::race, {"rotate_cluster"}, [&] { launch(KERNEL(rotate_cluster<Missing::second>), shape, span_of(y)); });
  for (const int order : {0, 1})
    check_caught(Fault::race, {"block 0 thread 40", "block 1 thread "},
                 [&] { launch(KERNEL(far_reader), {.blocks = 2, .threads = 64, .cluster = 2}, span_of(y), order); });
}

TEST_CASE("blocks are ordered by nothing") {
  auto y = values(8);
  for (const bool both_write : {false, true}) {
    check_caught(Fault::race, {"block 0 thread 0", "block 1 thread 0", "element 5 of global memory"},
                 [&] { launch(KERNEL(blocks_meet_in_memory), {.blocks = 2, .threads = 32}, span_of(y), both_write); });
    check_caught(Fault::race, {"block 0 thread 0", "block 1 thread 0"},
                 [&] { launch(KERNEL(blocks_meet_in_memory), {.blocks = 2, .threads = 32, .cluster = 2}, span_of(y), both_write); });
  }
  check_passes([&] {  // launches are
    launch(KERNEL(blocks_meet_in_memory), {.blocks = 1, .threads = 32}, span_of(y), true);
    launch(KERNEL(blocks_meet_in_memory), {.blocks = 1, .threads = 32}, span_of(y), true);
  });
}

TEST_CASE("asynchronous copies arrive late") {
  auto x = values(5 * 256), y = values(64);
  const Span<const float> source = span_of(x);
  const Launch shape{.blocks = 1, .threads = 64};
  check_passes([&] { launch(KERNEL(pipeline<1, true, true>), shape, source, span_of(y), 5); });
  check_passes([&] { launch(KERNEL(pipeline<0, true, true>), shape, source, span_of(y), 5); });
  check_caught(Fault::in_flight, {"pipeline", "copy_async_wait", "block 0 thread "},
               [&] { launch(KERNEL(pipeline<2, true, true>), shape, source, span_of(y), 5); });  // off by one
  check_caught(Fault::race, {"pipeline", "block 0 thread "}, [&] { launch(KERNEL(pipeline<1, false, true>), shape, source, span_of(y), 5); });
  check_caught(Fault::race, {"pipeline"}, [&] { launch(KERNEL(pipeline<1, true, false>), shape, source, span_of(y), 5); });
}

TEST_CASE("asynchronous copies must be committed and waited for") {
  const Launch shape{.blocks = 1, .threads = 32};
  auto x = values(128), y = values(32);
  check_caught(Fault::in_flight, {"copy_async_wait must come first"},
               [&] { launch(KERNEL(copy_wrongly<CopyMistake::no_wait>), shape, span_of(x), span_of(y)); });
  check_caught(Fault::in_flight, {"reads"}, [&] { launch(KERNEL(copy_wrongly<CopyMistake::reads_again>), shape, span_of(x), span_of(y)); });
  check_caught(Fault::in_flight, {}, [&] { launch(KERNEL(copy_wrongly<CopyMistake::no_commit>), shape, span_of(x), span_of(y)); });
  check_caught(Fault::in_flight, {"ends without"}, [&] { launch(KERNEL(copy_wrongly<CopyMistake::never_waits>), shape, span_of(x), span_of(y)); });
  check_caught(Fault::in_flight, {"writes"}, [&] { launch(KERNEL(copy_wrongly<CopyMistake::own_overwrite>), shape, span_of(x), span_of(y)); });
  check_caught(Fault::race, {"global memory"}, [&] {
    auto fresh = values(128);
    launch(KERNEL(copy_wrongly<CopyMistake::source_changes>), shape, span_of(fresh), span_of(y));
  });
}

TEST_CASE("the absence of any barrier of a reduction is noticed") {
  std::vector<double> y(1);
  auto sum_twice = [&] {
    launch(KERNEL(+[](Span<double> out) {
             STATIC_SHARED(double, scratch, kWarp);
             double v = 0;
             for (int i = 0; i < 2; ++i) v += block_sum(1.0, scratch);
             if (threadIdx.x == 0) out[0] = v;
           }),
           Launch{.blocks = 1, .threads = 128}, span_of(y));
  };
  check_passes(sum_twice);
  size_t sites = 0;
  for (const simt::BarrierSite& site : simt::barrier_sites())
    if (site.place.rfind("cuda/reduce.h", 0) == 0) {
      ++sites;
      simt::under_every_schedule([&] {
        INFO(site.name());
        simt::settings().skipped_barrier = site.name();
        const auto e = simt::error_of(sum_twice);
        REQUIRE(e);
        CHECK(e->fault == Fault::race);
      });
    }
  CHECK(sites >= 2);
}
