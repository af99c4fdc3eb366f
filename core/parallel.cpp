// The stacks behind ScratchScope. How loops run: threads_openmp.cpp or threads_std.cpp.
#include "core/parallel.h"

#include <cstdlib>
#include <memory>
#include <vector>

#include "core/check.h"

namespace sinkgrad {

namespace {

struct Free {
  void operator()(char* p) const { std::free(p); }
};

/// Blocks are only added while scopes are open; once all are closed they merge into one.
struct ScratchStack {
  struct Block {
    std::unique_ptr<char, Free> memory;
    size_t bytes;
  };
  std::vector<Block> blocks;
  size_t current = 0, offset = 0;
  int depth = 0;

  void add_block(size_t bytes) {
    char* p = static_cast<char*>(std::aligned_alloc(64, bytes));
    require<OutOfMemoryError>(p != nullptr, "scratch: out of memory, asked for ", bytes, " bytes");
    blocks.push_back({std::unique_ptr<char, Free>(p), bytes});
  }
  void merge() {
    size_t total = 0;
    for (const Block& b : blocks) total += b.bytes;
    blocks.clear();
    add_block(total);
  }
};

thread_local ScratchStack g_scratch;

}  // namespace

ScratchScope::ScratchScope() {
  ScratchStack& s = g_scratch;
  if (s.depth++ == 0) {
    if (s.blocks.size() > 1) s.merge();
    s.current = s.offset = 0;
  }
  block_ = s.current;
  offset_ = s.offset;
}

ScratchScope::~ScratchScope() {
  g_scratch.current = block_;
  g_scratch.offset = offset_;
  --g_scratch.depth;
}

void* ScratchScope::take_bytes(size_t bytes) {
  ScratchStack& s = g_scratch;
  bytes = (bytes + 63) / 64 * 64;
  while (s.current < s.blocks.size() && s.offset + bytes > s.blocks[s.current].bytes) {
    ++s.current;
    s.offset = 0;
  }
  if (s.current == s.blocks.size()) {
    s.add_block(std::max<size_t>(bytes, size_t{1} << 18));
    s.offset = 0;
  }
  void* p = s.blocks[s.current].memory.get() + s.offset;
  s.offset += bytes;
  return p;
}

}  // namespace sinkgrad
