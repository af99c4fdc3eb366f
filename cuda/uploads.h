// Copies from the host that do not wait: the bytes go to pinned memory, from where the GPU fetches them in its own time.
// Outside a step they take turns in a ring. In a step every copy has its place in the pinned memory of the step's slot, the same address each
// time, so that a recorded copy can be repeated with new content.
#pragma once
#include <array>
#include <cstddef>
#include <vector>

#include "core/replay.h"
#include "cuda/context.h"

struct CUevent_st;

namespace sinkgrad::cuda {

/// Memory that the GPU reads, and the moment from which the host may write it again.
class PinnedMemory {
 public:
  PinnedMemory();
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  /// Memory behind what was taken since rewind(), in one piece; never moved.
  void* take(size_t bytes);
  size_t taken() const { return taken_; }
  /// To be called when the copies from this memory have been enqueued.
  void mark_used();
  /// Waits for the copies and starts at the beginning.
  void rewind();

 private:
  struct Block {
    char* memory;
    size_t bytes;
  };
  std::vector<Block> blocks_;
  size_t block_ = 0, offset_ = 0, taken_ = 0;
  CUevent_st* used_ = nullptr;
};

class Uploads {
 public:
  Uploads() = default;
  /// `host` may change as soon as this returns. While launches are suppressed only the pinned memory is filled.
  void copy(void* device, const void* host, size_t bytes);
  /// From here to end_step() copies belong to a step.
  void begin_step(int slot);
  void end_step() { slot_ = kNone; }
  /// To be called when a step of that slot, or its record, has been enqueued.
  void mark_used(int slot) { steps_[static_cast<size_t>(slot)].mark_used(); }

 private:
  static constexpr int kNone = -1;
  void* place_in_ring(size_t bytes);
  std::array<PinnedMemory, Recorder::kSlots> steps_;
  std::array<PinnedMemory, 2> ring_;
  size_t turn_ = 0;
  int slot_ = kNone;
};

}  // namespace sinkgrad::cuda
