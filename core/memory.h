// Memory of one training step: a bump arena for values and a recycler for gradients, both emptied by reset().
// After two steps of the same shape nothing is asked of the system and every buffer has the same address again.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "core/device.h"

namespace sinkgrad {

/// Bytes and calls seen by the allocators of this process (all devices together).
struct MemoryStats {
  uint64_t system_allocations = 0;  ///< calls to Backend::allocate
  uint64_t reserved_bytes = 0;      ///< held from the system now
};
MemoryStats memory_stats();

/// While true, arenas hand out memory filled with NaN: a kernel that skips an output element is caught.
void set_memory_poison(bool on);

class Arena {
 public:
  static constexpr size_t kAlignment = 64;

  explicit Arena(Device device) : backend_(&device.backend()) {}
  ~Arena() { release_blocks(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(size_t bytes);
  /// Forgets all allocations; several blocks become one of the size that was needed.
  void reset();
  size_t active_bytes() const { return active_; }
  size_t peak_bytes() const { return peak_; }
  size_t reserved_bytes() const { return reserved_; }

 private:
  struct Block {
    char* memory;
    size_t bytes;
  };
  void grow(size_t bytes);
  void release_blocks();
  Backend* backend_;
  std::vector<Block> blocks_;
  size_t offset_ = 0, active_ = 0, peak_ = 0, reserved_ = 0;
};

/// Free lists by power-of-two size over an arena, so that a gradient's memory serves again as soon as it is used up.
class Recycler {
 public:
  explicit Recycler(Arena& arena) : arena_(&arena) {}
  void* take(size_t bytes);
  void give_back(void* memory, size_t bytes);
  void reset();

 private:
  static constexpr size_t kClasses = 48;
  Arena* arena_;
  std::array<std::vector<void*>, kClasses> free_;
};

}  // namespace sinkgrad
