// The arena, the recycler and the CPU backend.
#include "core/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "core/parallel.h"

namespace sinkgrad {
namespace {

std::atomic<uint64_t> g_system_allocations{0}, g_reserved_bytes{0};
std::atomic<bool> g_poison{false};

class CpuBackend final : public Backend {
 public:
  std::string name() const override { return "cpu"; }
  void* allocate(size_t bytes) override {
    // Large blocks lie on huge pages where the system has them: fewer translations to look up, fewer faults in the first step.
    constexpr size_t kHugePage = size_t{2} << 20;
    const bool large = bytes >= 2 * kHugePage;
    const size_t alignment = large ? kHugePage : 256, size = (bytes + alignment - 1) / alignment * alignment;
    void* memory = std::aligned_alloc(alignment, size);
    require<OutOfMemoryError>(memory != nullptr, "cpu: out of memory, asked for ", bytes, " bytes");
    if (large) madvise(memory, size, MADV_HUGEPAGE);
    return memory;
  }
  void release(void* memory) override { std::free(memory); }
  void fill(void* memory, int byte, size_t bytes) override { std::memset(memory, byte, bytes); }
  void copy_in(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void copy_out(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void synchronize() override {}
  std::vector<std::pair<std::string, std::string>> properties() override { return {{"threads", std::to_string(threads())}}; }
};

constexpr size_t kSmallestBlock = size_t{1} << 20;

}  // namespace

MemoryStats memory_stats() { return {g_system_allocations, g_reserved_bytes}; }
void set_memory_poison(bool on) { g_poison = on; }

double Backend::seconds(const std::function<void()>& work) {
  synchronize();
  const auto start = std::chrono::steady_clock::now();
  work();
  synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Device Device::cpu() {
  static CpuBackend backend;
  return {DeviceKind::cpu, backend};
}

void* Arena::allocate(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (blocks_.empty() || offset_ + bytes > blocks_.back().bytes) grow(bytes);
  void* memory = blocks_.back().memory + offset_;
  offset_ += bytes;
  active_ += bytes;
  if (active_ > peak_) peak_ = active_;
  if (g_poison.load(std::memory_order_relaxed)) backend_->fill(memory, 0xFF, bytes);
  return memory;
}

void Arena::reset() {
  if (blocks_.size() > 1) {
    const size_t needed = reserved_;
    release_blocks();
    grow(needed);
  }
  offset_ = active_ = 0;
}

void Arena::grow(size_t bytes) {
  // Each block is at least as large as all before it, so that a long first step takes few blocks.
  size_t size = bytes < kSmallestBlock ? kSmallestBlock : bytes;
  if (size < reserved_) size = reserved_;
  blocks_.reserve(blocks_.size() + 1);
  blocks_.push_back({static_cast<char*>(backend_->allocate(size)), size});
  reserved_ += size;
  ++g_system_allocations;
  g_reserved_bytes += size;
  offset_ = 0;
}

void Arena::release_blocks() {
  for (const Block& b : blocks_) backend_->release(b.memory);
  blocks_.clear();
  g_reserved_bytes -= reserved_;
  reserved_ = offset_ = 0;
}

namespace {
size_t size_class(size_t bytes) { return bytes <= 64 ? 6 : static_cast<size_t>(std::bit_width(bytes - 1)); }
}  // namespace

void* Recycler::take(size_t bytes) {
  auto& list = free_[size_class(bytes)];
  if (list.empty()) return arena_->allocate(size_t{1} << size_class(bytes));
  void* memory = list.back();
  list.pop_back();
  return memory;
}

void Recycler::give_back(void* memory, size_t bytes) { free_[size_class(bytes)].push_back(memory); }

void Recycler::reset() {
  for (auto& list : free_) list.clear();
}

}  // namespace sinkgrad
