// The state of the host executor, shared by its files: threads, the groups in which they meet, and the clocks that order accesses.
// Time counts the barriers passed in this process. Groups are nested (warp, block, cluster), so two accesses are ordered exactly when
// the smallest group that holds both threads, or a larger one, met between them: comparing times decides.
#pragma once
#include <exception>
#include <vector>

#include "simt/executor.h"
#include "simt/fiber.h"

namespace sinkgrad::simt {

constexpr int kWarp = 32, kMaxThreads = 1024, kMaxCluster = 16;
constexpr size_t kStaticLimit = 48 << 10;

/// When and by whom: the time, and in the lowest bits block in cluster and thread. 0: never.
using Stamp = uint64_t;
constexpr int kCodeBits = 14;
constexpr Stamp kCodeMask = (Stamp{1} << kCodeBits) - 1;

/// The clocks of the thread that runs now. Accesses by others are behind a barrier when their stamps are below that of the smallest
/// group shared with them.
struct Now {
  Stamp stamp = 0;  ///< of what this thread does now
  Stamp warp = 0, block = 0, cluster = 0;
  Stamp cluster_start = 0, launch_start = 0;
};
extern Now g_now;
/// A time later than all before.
Stamp next_time();

struct Fiber;

/// Threads that meet: those from `begin` on, `size` of them.
struct Group {
  int begin = 0, size = 0;
  int arrived = 0, ended = 0;
  Fiber* first = nullptr;  ///< to arrive
  Stamp horizon = 0;       ///< when it last passed a barrier
};

struct Warp : Group {
  alignas(64) char slots[2][kWarp * kExchangeBytes];
  int parity = 0;
};

struct Block : Group {
  // The last access to this block's shared memory by another block.
  Stamp remote = 0;
  int64_t remote_index = 0;
  Place remote_place;
};

struct Copy {
  int block;
  size_t to;
  const char* from;
  int64_t to_index, from_index;
  Place place;
  char seen[16];  ///< the source when the copy was started
};

struct Fiber : ThreadState {
  Continuation continuation;
  int index = 0, warp = 0;  ///< within the cluster
  Stamp code = 0;
  const char* word = nullptr;  ///< at which it waits
  Place place;
  std::vector<Copy> copies;       ///< on their way, in order
  std::vector<size_t> committed;  ///< ends of the groups among them
};

struct StaticArray {
  Place place;
  size_t bytes, offset;
};

/// One launch, and of it one cluster at a time.
struct Machine {
  const char* kernel = nullptr;
  Place place;
  cuda::Launch shape;
  const std::function<void()>* body = nullptr;
  uint64_t serial = 0;  ///< of the launch
  uint64_t switches = 0;
  int threads = 0, ended = 0;  ///< of the cluster
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Block> blocks;
  Group cluster;
  std::vector<uint32_t> ready;  ///< by warp, a bit per lane
  int ready_count = 0;
  size_t current_warp = 0;
  std::vector<StaticArray> statics;
  std::vector<std::pair<Stamp, int64_t>> starts;  ///< of the clusters of this launch: time and first block
  Continuation main;
  std::exception_ptr error;
  std::string uninitialised;  ///< the first read of what nothing has written
};
extern Machine g_machine;

inline Fiber& current() { return *static_cast<Fiber*>(g_thread); }
inline Block& block_of(const Fiber& f) { return g_machine.blocks[static_cast<size_t>(f.block_in_cluster)]; }

bool same_place(const Place& a, const Place& b);
/// "block 3 thread 17".
std::string name_of(const ThreadState& thread);
/// Likewise of the thread that left a stamp during this launch.
std::string name_of(Stamp stamp);

/// Makes room for the shared memory of the cluster's blocks and poisons it.
void prepare_shared(int blocks, size_t bytes);
void poison_shared(size_t at, size_t bytes);
/// A block's last thread has ended: no access by another block may be left without a cluster_sync after it.
void check_block_end(const Block& block);

/// Counts that the running kernel reached the barrier; false: skip it.
bool reach_barrier(const char* kind, const Place& place);

}  // namespace sinkgrad::simt
