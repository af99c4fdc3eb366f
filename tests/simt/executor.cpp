// Scheduling, barriers and warp operations of the host executor. One cluster of blocks is alive at a time.
#include "simt/executor.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "simt/machine.h"

namespace sinkgrad::simt {

ThreadState* g_thread = nullptr;
Machine g_machine;

Settings& settings() {
  static Settings s = [] {
    const char* skipped = std::getenv("SIMT_SKIP_BARRIER");
    return Settings{.skipped_barrier = skipped ? skipped : ""};
  }();
  return s;
}

Stamp next_time() {
  static Stamp time = 0;
  return ++time << kCodeBits;
}

namespace {

std::vector<FiberStack> g_stacks;
std::map<std::string, uint64_t> g_launches;
std::string g_first_fault;

/// splitmix64: the order of threads needs variety, not quality.
uint64_t g_random_state = 0;
uint64_t random_number() {
  uint64_t z = g_random_state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

Warp& warp_of(const Fiber& f) { return g_machine.warps[static_cast<size_t>(f.warp)]; }

/// The fiber runs from now on: its clocks.
void become(Fiber& f) {
  const Stamp warp = warp_of(f).horizon;
  g_thread = &f;
  g_now.stamp = warp | f.code;
  g_now.warp = warp;
  g_now.block = block_of(f).horizon;
  g_now.cluster = g_machine.cluster.horizon;
}

void set_ready(int begin, int size) {
  for (int w = begin / kWarp; w < (begin + size) / kWarp; ++w) g_machine.ready[static_cast<size_t>(w)] = ~0u;
  g_machine.ready_count += size;
}
void set_waiting(const Fiber& f) {
  g_machine.ready[static_cast<size_t>(f.warp)] &= ~(1u << f.index % kWarp);
  --g_machine.ready_count;
}

/// Who continues: some thread that does not wait.
Fiber& next_fiber() {
  Machine& m = g_machine;
  const size_t warps = m.ready.size();
  auto find_warp = [&](size_t w) {
    while (!m.ready[w]) w = w + 1 < warps ? w + 1 : 0;
    return w;
  };
  size_t warp = m.current_warp;
  int lane = 0;
  switch (settings().schedule) {
    case Schedule::warp_ahead:
      if (!m.ready[warp]) warp = m.current_warp = find_warp((random_number() >> 32) * warps >> 32);
      lane = std::countr_zero(m.ready[warp]);
      break;
    case Schedule::random: {
      const uint64_t r = random_number();
      const int turn = static_cast<int>(r >> 59);
      warp = find_warp((r & 0xffffffff) * warps >> 32);
      lane = (std::countr_zero(std::rotr(m.ready[warp], turn)) + turn) % kWarp;
      break;
    }
    case Schedule::reverse:
      for (warp = warps - 1; !m.ready[warp];) --warp;
      lane = std::bit_width(m.ready[warp]) - 1;
  }
  return m.fibers[warp * kWarp + static_cast<size_t>(lane)];
}

[[noreturn]] void report_deadlock() {
  const Machine& m = g_machine;
  const Fiber& me = current();
  std::string others;
  for (int i = 0; i < m.threads && others.empty(); ++i) {
    const Fiber& f = m.fibers[static_cast<size_t>(i)];
    if (f.word && (f.word != me.word || !same_place(f.place, me.place))) others = cat("; ", name_of(f), " waits at ", f.word, ", ", text(f.place));
  }
  fail(Fault::deadlock, cat("waits for ever at ", me.word, others), &me.place);
}

/// Lets another thread run; returns when this one may go on.
void yield() {
  Machine& m = g_machine;
  if (m.ready_count == 0) report_deadlock();
  if (++m.switches > settings().max_switches)
    fail(Fault::endless, cat("more than ", settings().max_switches, " switches between threads: does a loop never end?"), &current().place);
  Fiber &me = current(), &next = next_fiber();
  if (&next != &me) {
    g_thread = &next;
    switch_fiber(me.continuation, next.continuation);
  }
  become(me);
}

/// Joins the group; the last to arrive releases all. Threads that meet must be at the same word of the same place.
void meet(Group& group, const char* word, WarpOp op, const Place& place) {
  Fiber& me = current();
  if (group.ended) {
    for (int i = group.begin; i < group.begin + group.size; ++i)
      if (const Fiber& f = g_machine.fibers[static_cast<size_t>(i)]; f.index < 0)
        fail(Fault::exited, cat(word, " after ", name_of(f), " of the same group has ended"), &place);
  }
  if (group.arrived == 0)
    group.first = &me;
  else if (group.first->word != word || !same_place(group.first->place, place))
    fail(Fault::divergence,
         cat(word, " at ", text(place), " while ", name_of(*group.first), " is at ", group.first->word, ", ", text(group.first->place)), &place);
  me.word = word;
  me.place = place;
  set_waiting(me);
  if (++group.arrived == group.size) {
    group.arrived = 0;
    for (int i = group.begin; i < group.begin + group.size; ++i) g_machine.fibers[static_cast<size_t>(i)].word = nullptr;
    set_ready(group.begin, group.size);
    if (op == WarpOp::sync) {
      Machine& m = g_machine;
      group.horizon = next_time();
      for (int w = group.begin / kWarp; w < (group.begin + group.size) / kWarp; ++w) m.warps[static_cast<size_t>(w)].horizon = group.horizon;
      if (&group == &m.cluster)
        for (Block& b : m.blocks) b.horizon = group.horizon;
    }
  }
  yield();
}

/// The running thread has come to its end.
void end_thread(Fiber& me) {
  Machine& m = g_machine;
  if (!me.copies.empty()) {
    const Place place = me.copies.back().place;
    fail(Fault::in_flight, "the thread ends without having waited for its copy_async", &place);
  }
  for (Group* g : {static_cast<Group*>(&warp_of(me)), static_cast<Group*>(&block_of(me)), &m.cluster}) {
    if (g->arrived)
      fail(Fault::exited, cat("the thread ends while ", name_of(*g->first), " waits for it at ", g->first->word, ", ", text(g->first->place)));
    ++g->ended;
  }
  Block& block = block_of(me);
  if (block.ended == block.size) {
    block.first = &me;
    check_block_end(block);
  }
  set_waiting(me);
  me.index = -1;
  ++m.ended;
}

void enter() {
  Fiber& me = current();
  Machine& m = g_machine;
  become(me);
  try {
    (*m.body)();
    end_thread(me);
  } catch (...) {
    m.error = std::current_exception();
  }
  if (m.error || m.ready_count == 0) switch_fiber(me.continuation, m.main);
  Fiber& next = next_fiber();
  g_thread = &next;
  switch_fiber(me.continuation, next.continuation);
}

void prepare_launch() {
  Machine& m = g_machine;
  m.threads = m.shape.threads * m.shape.cluster;
  m.switches = 0;
  m.statics.clear();
  m.starts.clear();
  m.error = nullptr;
  m.uninitialised.clear();
  const auto threads = static_cast<size_t>(m.threads);
  if (m.fibers.size() < threads) m.fibers.resize(threads);
  while (g_stacks.size() < threads) g_stacks.emplace_back();
  m.warps.resize(threads / kWarp);
  m.blocks.resize(static_cast<size_t>(m.shape.cluster));
  m.ready.resize(threads / kWarp);
  for (size_t i = 0; i < threads; ++i) {
    Fiber& f = m.fibers[i];
    f.warp = static_cast<int>(i) / kWarp;
    f.block_in_cluster = static_cast<int>(i) / m.shape.threads;
    f.thread.x = static_cast<unsigned>(static_cast<int>(i) % m.shape.threads);
    f.code = static_cast<Stamp>(f.block_in_cluster) * kMaxThreads + f.thread.x;
    f.cluster_blocks = m.shape.cluster;
    f.block_size = {static_cast<unsigned>(m.shape.threads), 1, 1};
    f.grid_size = {static_cast<unsigned>(m.shape.blocks), 1, 1};
    f.copies.clear();
    f.committed.clear();
  }
}

void prepare_cluster(int64_t first_block) {
  Machine& m = g_machine;
  const Stamp start = next_time();
  auto prepare = [&](Group& g, int begin, int size) {
    g.begin = begin;
    g.size = size;
    g.arrived = g.ended = 0;
    g.horizon = start;
  };
  for (size_t w = 0; w < m.warps.size(); ++w) prepare(m.warps[w], static_cast<int>(w) * kWarp, kWarp);
  for (size_t b = 0; b < m.blocks.size(); ++b) {
    prepare(m.blocks[b], static_cast<int>(b) * m.shape.threads, m.shape.threads);
    m.blocks[b].remote = 0;
  }
  prepare(m.cluster, 0, m.threads);
  g_now.cluster_start = start;
  m.starts.emplace_back(start, first_block);
  prepare_shared(m.shape.cluster, (m.shape.shared_bytes + 15) / 16 * 16);
  for (const StaticArray& a : m.statics) poison_shared(a.offset, a.bytes);
  for (int i = 0; i < m.threads; ++i) {
    Fiber& f = m.fibers[static_cast<size_t>(i)];
    f.index = i;
    f.block.x = static_cast<unsigned>(first_block + f.block_in_cluster);
    f.word = nullptr;
    f.committed.clear();
    f.continuation = g_stacks[static_cast<size_t>(i)].prepare(enter);
  }
  m.ended = m.ready_count = 0;
  m.current_warp = random_number() % m.warps.size();
  set_ready(0, m.threads);
}

void run_cluster() {
  Machine& m = g_machine;
  g_thread = &next_fiber();
  switch_fiber(m.main, current().continuation);
  if (m.error) std::rethrow_exception(m.error);
  for (int i = 0; m.ended < m.threads; ++i)
    if (Fiber& f = m.fibers[static_cast<size_t>(i)]; f.word) {
      g_thread = &f;
      report_deadlock();
    }
}

void check_shape(const char* kernel, const Place& place, const cuda::Launch& shape) {
  auto refuse = [&](bool ok, const char* what, auto value) {
    if (!ok) throw KernelError(Fault::launch, cat("kernel ", kernel, ", launched at ", text(place), ": ", what, ", got ", value));
  };
  refuse(shape.threads > 0 && shape.threads <= kMaxThreads && shape.threads % kWarp == 0, "a block must have 32 to 1024 threads, whole warps",
         shape.threads);
  refuse(shape.blocks > 0 && shape.blocks < (int64_t{1} << 31), "a grid must have 1 to 2^31 - 1 blocks", shape.blocks);
  refuse(shape.cluster >= 1 && shape.cluster <= kMaxCluster, "a cluster must have 1 to 16 blocks", shape.cluster);
  refuse(shape.blocks % shape.cluster == 0, cat("blocks must be a multiple of the cluster, which is ", shape.cluster).c_str(), shape.blocks);
  refuse(shape.cluster == 1 || settings().architecture >= 90, "clusters need sm_90", settings().architecture);
  refuse(shape.shared_bytes <= settings().shared_limit, cat("shared memory must be at most ", settings().shared_limit, " bytes").c_str(),
         shape.shared_bytes);
}

}  // namespace

const std::map<std::string, uint64_t>& launch_counts() { return g_launches; }
const std::string& first_fault() { return g_first_fault; }

KernelError::KernelError(Fault f, const std::string& sentence) : Error(sentence), fault(f) {
  if (g_first_fault.empty()) g_first_fault = name_of(f);
}

const char* name_of(Fault fault) {
  constexpr const char* names[] = {"misuse",    "launch",     "bounds", "alignment", "shared size",  "race",        "uninitialised read",
                                   "in flight", "divergence", "exited", "deadlock",  "cluster exit", "endless loop"};
  return names[static_cast<size_t>(fault)];
}

std::string name_of(const ThreadState& thread) { return cat("block ", thread.block.x, " thread ", thread.thread.x); }

std::string name_of(Stamp stamp) {
  const auto& starts = g_machine.starts;
  const auto after = std::upper_bound(starts.begin(), starts.end(), stamp, [](Stamp s, const auto& start) { return s < start.first; });
  const auto code = static_cast<int64_t>(stamp & kCodeMask);
  return cat("block ", (after - 1)->second + code / kMaxThreads, " thread ", code % kMaxThreads);
}

void fail(Fault fault, const std::string& sentence, const Place* place) {
  const Machine& m = g_machine;
  if (!g_thread) throw KernelError(fault, sentence);
  std::string before = m.uninitialised.empty() ? "" : "; before, " + m.uninitialised;
  throw KernelError(fault, cat("kernel ", m.kernel, ", ", name_of(*g_thread), place ? ", " + text(*place) : "", ": ", sentence, before,
                               " [launched at ", text(m.place), "]"));
}

size_t dynamic_shared_bytes() { return g_machine.shape.shared_bytes; }

size_t static_shared(size_t bytes, const Place& place) {
  Machine& m = g_machine;
  for (const StaticArray& a : m.statics)
    if (a.bytes == bytes && same_place(a.place, place) && !std::strcmp(a.place.function_name(), place.function_name())) return a.offset;
  const size_t dynamic = (m.shape.shared_bytes + 15) / 16 * 16;
  const size_t offset = m.statics.empty() ? dynamic : (m.statics.back().offset + m.statics.back().bytes + 15) / 16 * 16;
  if (offset + bytes > dynamic + kStaticLimit || offset + bytes > settings().shared_limit)
    fail(Fault::shared_size,
         cat("static shared arrays of ", offset + bytes - dynamic, " bytes, next to ", dynamic, " asked for by the launch, exceed the limit"),
         &place);
  m.statics.push_back({place, bytes, offset});
  poison_shared(offset, bytes);
  return offset;
}

const void* warp_exchange(WarpOp op, const void* mine, size_t bytes, const Place& place) {
  Fiber& me = current();
  Warp& w = warp_of(me);
  if (w.arrived == 0) w.parity ^= 1;  // the results of the last exchange may still be read
  char* slots = w.slots[w.parity];
  std::memcpy(slots + static_cast<size_t>(me.thread.x % kWarp) * bytes, mine, bytes);
  meet(w, op == WarpOp::shuffle ? "warp_shuffle" : op == WarpOp::vote ? "warp_ballot" : "mma", op, place);
  return slots;
}

void warp_barrier(const Place& place) {
  if (reach_barrier("warp_sync", place)) meet(warp_of(current()), "warp_sync", WarpOp::sync, place);
}
void block_barrier(const Place& place) {
  if (reach_barrier("block_sync", place)) meet(block_of(current()), "block_sync", WarpOp::sync, place);
}
void cluster_barrier(const Place& place) {
  if (reach_barrier("cluster_sync", place)) meet(g_machine.cluster, "cluster_sync", WarpOp::sync, place);
}

void run(const char* kernel, const Place& place, const cuda::Launch& shape, const std::function<void()>& body) {
  check_shape(kernel, place, shape);
  g_random_state = settings().seed * 7919 + ++g_launches[kernel];

  Machine& m = g_machine;
  if (g_thread) fail("a kernel must not launch another");
  m.kernel = kernel;
  m.place = place;
  m.shape = shape;
  m.body = &body;
  ++m.serial;
  g_now.launch_start = next_time();
  struct Leave {
    ~Leave() { g_thread = nullptr; }
  } leave;
  prepare_launch();
  std::vector<int64_t> clusters(static_cast<size_t>(shape.blocks / shape.cluster));
  std::iota(clusters.begin(), clusters.end(), 0);
  if (settings().schedule == Schedule::reverse)
    std::reverse(clusters.begin(), clusters.end());
  else
    for (size_t i = clusters.size(); i > 1; --i) std::swap(clusters[i - 1], clusters[random_number() % i]);
  for (const int64_t c : clusters) {
    prepare_cluster(c * shape.cluster);
    run_cluster();
  }
  if (!m.uninitialised.empty())
    throw KernelError(Fault::uninitialised, cat("kernel ", kernel, ", ", m.uninitialised, " [launched at ", text(place), "]"));
}

}  // namespace sinkgrad::simt
