// Shadow memory: who wrote and who read each 4 bytes of shared and global memory, and when.
// Of the reads since the last write two suffice: those whose smallest common group is largest, none of them behind another. A write
// that is ordered after both lies behind a barrier of that group, and thereby behind every other read.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>

#include "simt/machine.h"

namespace sinkgrad::simt {

Now g_now;

namespace {

enum class Memory : uint8_t { shared, global };

/// What is known about 4 bytes.
struct Cell {
  Stamp writer, readers[2];
  uint16_t writer_line, reader_lines[2];  ///< in the source
  uint16_t in_flight;                     ///< the write is an asynchronous copy that its thread has not waited for
};
static_assert(sizeof(Cell) == 32);

struct Access {
  Memory memory;
  bool write;
  int64_t index;
  Place place;
};
template <Memory memory>
constexpr const char* kName = memory == Memory::shared ? "shared memory" : "global memory";

/// Whether what left the stamp is behind a barrier for the running thread, or its own.
template <Memory memory>
bool is_behind(Stamp s) {
  const Now& n = g_now;
  const Stamp other = (s ^ n.stamp) & kCodeMask;
  const Stamp horizon = other < kWarp ? n.warp : other < kMaxThreads ? n.block : n.cluster;
  if (s >= horizon && other != 0) return false;
  // Clusters of one launch are ordered by nothing; shared memory begins with its cluster.
  return memory == Memory::shared || s >= n.cluster_start || s < n.launch_start;
}

/// The smallest group that holds the threads of both stamps, as a number.
int span_of(Stamp a, Stamp b) {
  if (std::min(a, b) < g_now.cluster_start) return 3;  // another cluster
  const Stamp other = (a ^ b) & kCodeMask;
  return other < kWarp ? 0 : other < kMaxThreads ? 1 : 2;
}

template <Memory memory>
[[noreturn, gnu::cold, gnu::noinline]] void report_race(Stamp before, const char* did, uint16_t line, bool write, int64_t index, Place place) {
  fail(Fault::race,
       cat(write ? "writes" : "reads", " element ", index, " of ", kName<memory>, ", which ", name_of(before), " ", did, " (line ", line,
           "), with no barrier between"),
       &place);
}
[[noreturn, gnu::cold, gnu::noinline]] void report_in_flight(const Cell& c, bool write, int64_t index, Place place) {
  fail(Fault::in_flight,
       cat(write ? "writes" : "reads", " element ", index, " of shared memory, to which a copy_async of ", name_of(c.writer), " (line ",
           c.writer_line, ") is on its way: copy_async_wait must come first, and for other threads a barrier after it"),
       &place);
}
/// A value that nobody wrote is a fault, but perhaps half of a race that the write will complete: the report waits for the end.
[[gnu::cold, gnu::noinline]] void note_uninitialised(const char* memory, int64_t index, const Place& place) {
  if (g_machine.uninitialised.empty())
    g_machine.uninitialised =
        cat(name_of(*g_thread), ", ", text(place), ": reads element ", index, " of ", memory, " memory, which nothing has written");
}

template <Memory memory>
void note_read(Cell& c, int64_t index, const Place& place) {
  const Stamp now = g_now.stamp;
  if (c.readers[0] == now || c.readers[1] == now) return;
  if constexpr (memory == Memory::shared) {
    if (c.writer < g_now.cluster_start) [[unlikely]]
      note_uninitialised("shared", index, place);
    else if (c.in_flight && is_behind<memory>(c.writer)) [[unlikely]]
      report_in_flight(c, false, index, place);
  }
  if (!is_behind<memory>(c.writer)) [[unlikely]]
    report_race<memory>(c.writer, c.in_flight ? "began to fill by copy_async" : "wrote", c.writer_line, false, index, place);
  const auto line = static_cast<uint16_t>(place.line());
  if (is_behind<memory>(c.readers[0])) {
    c.readers[0] = now;
    c.reader_lines[0] = line;
  } else if (is_behind<memory>(c.readers[1]) || span_of(c.readers[0], now) > span_of(c.readers[0], c.readers[1])) {
    c.readers[1] = now;
    c.reader_lines[1] = line;
  }
}

template <Memory memory>
void note_write(Cell& c, int64_t index, const Place& place) {
  if (memory == Memory::shared && c.in_flight) [[unlikely]] {
    if (c.writer < g_now.cluster_start)
      c.in_flight = 0;  // left by a launch that failed
    else if (is_behind<memory>(c.writer))
      report_in_flight(c, true, index, place);
  }
  if (!is_behind<memory>(c.writer)) [[unlikely]]
    report_race<memory>(c.writer, c.in_flight ? "began to fill by copy_async" : "wrote", c.writer_line, true, index, place);
  for (int k = 0; k < 2; ++k)
    if (!is_behind<memory>(c.readers[k])) [[unlikely]]
      report_race<memory>(c.readers[k], "read", c.reader_lines[k], true, index, place);
  c.writer = g_now.stamp;
  c.writer_line = static_cast<uint16_t>(place.line());
  c.readers[0] = c.readers[1] = 0;  // also this thread's: its next read must look at the cell again
}

// Global memory: shadows in pages, found through a table and a small cache before it.
constexpr size_t kPageBytes = 4096, kPageCells = kPageBytes / 4;
struct Page {
  Cell cells[kPageCells];
  Stamp fresh_since;  ///< of scratch memory: what was not written since has no value
};
struct CachedPage {
  uintptr_t number = 0;
  Page* page = nullptr;
};
std::array<CachedPage, 512> g_cache;

Page& find_page(uintptr_t number) {
  static std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
  std::unique_ptr<Page>& page = pages[number];
  if (!page) page = std::make_unique<Page>();  // all zero
  g_cache[number % g_cache.size()] = {number, page.get()};
  return *page;
}
Page& page_of(uintptr_t address) {
  const uintptr_t number = address / kPageBytes;
  const CachedPage& c = g_cache[number % g_cache.size()];
  return c.number == number ? *c.page : find_page(number);
}

// Shared memory, a piece per block of the cluster.
struct SharedBlock {
  std::vector<char> bytes;
  std::vector<Cell> cells;
};
std::array<SharedBlock, kMaxCluster> g_shared;

[[gnu::noinline]] void note_remote_access(int block, int64_t index, const Place& place) {
  Machine& m = g_machine;
  Block& owner = m.blocks[static_cast<size_t>(block)];
  const int64_t number = static_cast<int64_t>(g_thread->block.x) - g_thread->block_in_cluster + block;
  if (m.cluster.horizon == g_now.cluster_start)
    fail(Fault::cluster_exit,
         cat("element ", index, " of the shared memory of block ", number, ", which may not have begun: cluster_sync must come first"), &place);
  if (owner.ended == owner.size)
    fail(Fault::cluster_exit,
         cat("element ", index, " of the shared memory of block ", number, ", whose last thread, ", name_of(*owner.first),
             ", has ended: cluster_sync must come between"),
         &place);
  owner.remote = g_now.stamp;
  owner.remote_index = index;
  owner.remote_place = place;
}

template <bool write>
char* touch_shared(int block, size_t at, size_t bytes, int64_t index, const Place& place) {
  SharedBlock& s = g_shared[static_cast<size_t>(block)];
  if (block != g_thread->block_in_cluster) note_remote_access(block, index, place);
  Cell* c = s.cells.data() + at / 4;
  for (Cell* end = c + bytes / 4; c < end; ++c)
    if constexpr (write)
      note_write<Memory::shared>(*c, index, place);
    else
      note_read<Memory::shared>(*c, index, place);
  return s.bytes.data() + at;
}

}  // namespace

char* read_shared(int block, size_t at, size_t bytes, int64_t index, Place place) { return touch_shared<false>(block, at, bytes, index, place); }
char* write_shared(int block, size_t at, size_t bytes, int64_t index, Place place) { return touch_shared<true>(block, at, bytes, index, place); }

void read_global(const void* at, size_t bytes, int64_t index, Place place) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  for (uintptr_t a = address; a < address + bytes; a += 4) {
    Page& page = page_of(a);
    Cell& cell = page.cells[a % kPageBytes / 4];
    note_read<Memory::global>(cell, index, place);
    if (page.fresh_since > cell.writer) [[unlikely]] {
      uint32_t word;  // a library may have written here, and not left the poison
      std::memcpy(&word, reinterpret_cast<const void*>(a), sizeof word);
      if (word == 0xffffffffu) note_uninitialised("scratch", index, place);
    }
  }
}

void write_global(const void* at, size_t bytes, int64_t index, Place place) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  for (uintptr_t a = address; a < address + bytes; a += 4) note_write<Memory::global>(page_of(a).cells[a % kPageBytes / 4], index, place);
}

namespace {
std::unordered_map<void*, size_t> g_scratch;  // and the bytes that are watched
void mark_scratch(void* memory, size_t bytes, Stamp since) {
  const auto address = reinterpret_cast<uintptr_t>(memory);
  for (size_t at = 0; at < bytes; at += kPageBytes) page_of(address + at).fresh_since = since;
}
}  // namespace

void* take_scratch(size_t bytes) {
  bytes = std::max(bytes + kPageBytes - 1, kPageBytes) / kPageBytes * kPageBytes;
  void* memory = std::aligned_alloc(kPageBytes, bytes);
  if (!memory) throw OutOfMemoryError(cat("scratch: out of memory, asked for ", bytes, " bytes"));
  bytes = std::min(bytes, size_t{1} << 20);  // longer ones are workspaces of libraries
  std::memset(memory, 0xff, bytes);
  g_scratch[memory] = bytes;
  mark_scratch(memory, bytes, next_time());
  return memory;
}
void release_scratch(void* memory) {
  mark_scratch(memory, g_scratch[memory], 0);
  g_scratch.erase(memory);
  std::free(memory);
}

void prepare_shared(int blocks, size_t bytes) {
  for (int b = 0; b < blocks; ++b) {
    SharedBlock& s = g_shared[static_cast<size_t>(b)];
    if (s.bytes.size() < bytes + kStaticLimit) {
      s.bytes.resize(bytes + kStaticLimit);
      s.cells.resize(s.bytes.size() / 4);
    }
  }
  poison_shared(0, bytes);
}
void poison_shared(size_t at, size_t bytes) {
  for (int b = 0; b < g_machine.shape.cluster; ++b) std::memset(g_shared[static_cast<size_t>(b)].bytes.data() + at, 0xff, bytes);
}

void check_block_end(const Block& block) {
  if (block.remote < g_machine.cluster.horizon || !block.remote) return;
  const Place place = block.remote_place;
  fail(Fault::cluster_exit, cat("the block ends, while ", name_of(block.remote), " may still be at ", text(place), " with element ",
                                block.remote_index, " of its shared memory: cluster_sync must come between"));
}

void copy_async(int block, size_t to, const void* from, int64_t to_index, int64_t from_index, Place place) {
  if (block != g_thread->block_in_cluster) fail(Fault::misuse, "copy_async to another block's shared memory", &place);
  read_global(from, 16, from_index, place);
  write_shared(block, to, 16, to_index, place);
  Cell* cells = g_shared[static_cast<size_t>(block)].cells.data() + to / 4;
  for (int k = 0; k < 4; ++k) cells[k].in_flight = 1;
  Copy& c = current().copies.emplace_back(Copy{block, to, static_cast<const char*>(from), to_index, from_index, place, {}});
  std::memcpy(c.seen, from, 16);
}

void copy_async_commit() { current().committed.push_back(current().copies.size()); }

void copy_async_wait(int pending, const Place& place) {
  if (!reach_barrier("copy_async_wait", place)) return;
  std::vector<Copy>& copies = current().copies;
  std::vector<size_t>& committed = current().committed;
  if (static_cast<int>(committed.size()) <= pending) return;
  const size_t groups = committed.size() - static_cast<size_t>(pending), count = committed[groups - 1];
  for (size_t i = 0; i < count; ++i) {
    const Copy& c = copies[i];
    SharedBlock& s = g_shared[static_cast<size_t>(c.block)];
    for (size_t cell = c.to / 4; cell < c.to / 4 + 4; ++cell) s.cells[cell].in_flight = 0;
    read_global(c.from, 16, c.from_index, c.place);
    if (std::memcmp(c.from, c.seen, 16))
      fail(Fault::race, cat("global memory at element ", c.from_index, " changed while a copy_async was reading it"), &c.place);
    std::memcpy(write_shared(c.block, c.to, 16, c.to_index, c.place), c.from, 16);
  }
  copies.erase(copies.begin(), copies.begin() + static_cast<ptrdiff_t>(count));
  committed.erase(committed.begin(), committed.begin() + static_cast<ptrdiff_t>(groups));
  for (size_t& end : committed) end -= count;
}

}  // namespace sinkgrad::simt
