// Pinned memory with one event each: recorded behind the copies, waited for before the memory is written again.
#include "cuda/uploads.h"

#include <algorithm>
#include <cstring>

#include "cuda/check.h"

namespace sinkgrad::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kSmallestBlock = size_t{1} << 20;
constexpr size_t kRingTurn = size_t{8} << 20;  // bytes of one half of the ring, and of the longest single copy

}  // namespace

PinnedMemory::PinnedMemory() { CUDA_CHECK(cudaEventCreateWithFlags(&used_, cudaEventDisableTiming)); }

PinnedMemory::~PinnedMemory() {
  for (const Block& b : blocks_) cudaFreeHost(b.memory);
  cudaEventDestroy(used_);
}

void* PinnedMemory::take(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (; block_ < blocks_.size(); ++block_, offset_ = 0)
    if (offset_ + bytes <= blocks_[block_].bytes) break;
  if (block_ == blocks_.size()) {
    const size_t size = std::max({bytes, kSmallestBlock, blocks_.empty() ? 0 : 2 * blocks_.back().bytes});
    void* memory = nullptr;
    CUDA_CHECK(cudaHostAlloc(&memory, size, cudaHostAllocDefault));
    blocks_.push_back({static_cast<char*>(memory), size});
    offset_ = 0;
  }
  void* memory = blocks_[block_].memory + offset_;
  offset_ += bytes;
  taken_ += bytes;
  return memory;
}

void PinnedMemory::mark_used() { CUDA_CHECK(cudaEventRecord(used_, context().stream())); }

void PinnedMemory::rewind() {
  CUDA_CHECK(cudaEventSynchronize(used_));
  block_ = offset_ = taken_ = 0;
}

void* Uploads::place_in_ring(size_t bytes) {
  if (ring_[turn_].taken() + bytes > kRingTurn) {
    ring_[turn_].mark_used();
    turn_ = (turn_ + 1) % ring_.size();
    ring_[turn_].rewind();
  }
  return ring_[turn_].take(bytes);
}

void Uploads::copy(void* device, const void* host, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t part = slot_ == kNone ? std::min(bytes - done, kRingTurn) : bytes;
    void* pinned = slot_ == kNone ? place_in_ring(part) : steps_[static_cast<size_t>(slot_)].take(part);
    std::memcpy(pinned, static_cast<const char*>(host) + done, part);
    if (!context().launches_are_suppressed())
      CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(device) + done, pinned, part, cudaMemcpyHostToDevice, context().stream()));
    done += part;
  }
}

void Uploads::begin_step(int slot) {
  slot_ = slot;
  steps_[static_cast<size_t>(slot)].rewind();
}

}  // namespace sinkgrad::cuda
