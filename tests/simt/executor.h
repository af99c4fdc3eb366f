// The host executor: runs the threads of a block, and the blocks of a cluster, as fibers in adversarial orders.
// It reports, naming kernel, block, thread, element and place, what a GPU would pass over in silence: see Fault. Races are found by
// logical clocks, so whatever the order and the values. Any barrier can be skipped, to see that its absence is noticed.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <source_location>
#include <string>

#include "core/check.h"
#include "cuda/launch.h"

namespace sinkgrad::simt {

using Place = std::source_location;

/// What can be wrong with a kernel.
enum class Fault : uint8_t {
  misuse,         ///< a word of the vocabulary used against its rules
  launch,         ///< a launch that a GPU would refuse
  bounds,         ///< an index outside of a span or a shared array
  alignment,      ///< 16 bytes at once from elsewhere than a multiple of 16
  shared_size,    ///< more shared memory than the launch asked for
  race,           ///< two accesses by different threads, one of them a write, and no barrier between
  uninitialised,  ///< read, never written
  in_flight,      ///< touched while an asynchronous copy is on its way
  divergence,     ///< threads of one group at different warp operations or barriers
  exited,         ///< a barrier or warp operation after threads of the group have ended
  deadlock,       ///< threads that wait for one another
  cluster_exit,   ///< shared memory of a block that may have ended, or may not have begun
  endless,        ///< more switches between threads than Settings::max_switches
};
const char* name_of(Fault fault);

/// What the executor found wrong with a kernel.
struct KernelError : Error {
  KernelError(Fault f, const std::string& sentence);
  Fault fault;
};

/// In which order runnable threads continue.
enum class Schedule : uint8_t {
  warp_ahead,  ///< one warp runs as far as it can before any other starts, another one each time
  random,
  reverse,  ///< the highest thread first
};

/// Knobs of the executor, process-wide.
struct Settings {
  Schedule schedule = Schedule::warp_ahead;
  uint64_t seed = 1;
  int multiprocessors = 1;  ///< keeps grids small, so that the loops of grid-stride kernels go round
  size_t shared_limit = 227 << 10;
  int architecture = 90;
  uint64_t max_switches = 200'000'000;  ///< of one launch
  std::string skipped_barrier;          ///< name() of a barrier that does nothing; from the environment: SIMT_SKIP_BARRIER
  bool recording = true;                ///< whether the device offers a Recorder, see stream.h
};
Settings& settings();

/// A barrier in the source: a call of block_sync, warp_sync, cluster_sync or copy_async_wait.
struct BarrierSite {
  std::string kind, place;        ///< "block_sync", "cuda/softmax.cu:41"
  std::set<std::string> kernels;  ///< that reached it
  uint64_t reached = 0;
  std::string name() const { return kind + " " + place; }
};
/// In the order in which they were first reached. At the end of a process they are written, a JSON object with the first fault, to the
/// file that SIMT_REPORT names in the environment.
const std::deque<BarrierSite>& barrier_sites();
/// Launches so far, by kernel name.
const std::map<std::string, uint64_t>& launch_counts();
/// name_of() the first fault in this process; empty if there was none.
const std::string& first_fault();

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
struct ThreadState {
  Index3 thread, block, block_size, grid_size;
  int block_in_cluster = 0, cluster_blocks = 1;
};
/// The thread that runs now; valid inside a kernel only.
extern ThreadState* g_thread;

/// Reports a fault of the thread that runs now. `place` is where in the source, if known.
[[noreturn]] void fail(Fault fault, const std::string& sentence, const Place* place = nullptr);
[[noreturn]] inline void fail(const std::string& sentence) { fail(Fault::misuse, sentence); }
/// "cuda/softmax.cu:41".
std::string text(const Place& place);

// Every access to memory goes through these. `at` and `bytes` are multiples of 4; `index` is what messages call the element.
void read_global(const void* at, size_t bytes, int64_t index, Place place);
void write_global(const void* at, size_t bytes, int64_t index, Place place);
/// The memory of a block of the running cluster, after noting that it will be read or written.
char* read_shared(int block_in_cluster, size_t at, size_t bytes, int64_t index, Place place);
char* write_shared(int block_in_cluster, size_t at, size_t bytes, int64_t index, Place place);

/// Place of a static shared array in its block; the same for the same declaration.
size_t static_shared(size_t bytes, const Place& place);
size_t dynamic_shared_bytes();

/// Memory between the launches of one op: a read before any write is a fault.
void* take_scratch(size_t bytes);
void release_scratch(void* memory);

enum class WarpOp : uint8_t { sync, shuffle, vote, matrix };
constexpr size_t kExchangeBytes = 64;
/// Meets the other 31 lanes at `place` and returns what every lane deposited (bytes_per_lane each, at most kExchangeBytes). Orders no
/// memory.
const void* warp_exchange(WarpOp op, const void* mine, size_t bytes_per_lane, const Place& place);
void warp_barrier(const Place& place);
void block_barrier(const Place& place);
void cluster_barrier(const Place& place);

/// Asynchronous copies of 16 bytes by the running thread: they arrive when waited for, no earlier.
void copy_async(int block_in_cluster, size_t to, const void* from, int64_t to_index, int64_t from_index, Place place);
void copy_async_commit();
void copy_async_wait(int pending, const Place& place);

void run(const char* kernel, const Place& place, const cuda::Launch& shape, const std::function<void()>& body);

}  // namespace sinkgrad::simt
