// Between a fuzzer, which knows one parser, and fuzz_main.cpp, which knows libFuzzer and what may leave a parser.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"

namespace sinkgrad::fuzz {

/// Small inputs that the parser reads, to begin with.
std::vector<std::string> seeds();

/// Parses an input and uses what came out. May throw errors of core/check.h.
void feed(std::string_view input);

/// A file in memory, for parsers that are given a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("input", MFD_CLOEXEC)) {
    const bool written = ::write(descriptor_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
    require<IoError>(written, "a file of ", bytes.size(), " bytes in memory cannot be made");
  }
  ~MemoryFile() { ::close(descriptor_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::filesystem::path path() const { return cat("/proc/self/fd/", descriptor_); }

 private:
  int descriptor_;
};

/// The parts of an input that stands for several files or arguments, between bytes 1e (the record separator of ASCII).
inline std::vector<std::string> parts(std::string_view input, size_t count) {
  std::vector<std::string> found;
  for (size_t k = 0; k < count; ++k) {
    const size_t end = k + 1 == count ? input.size() : std::min(input.find('\x1e'), input.size());
    found.emplace_back(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  return found;
}

}  // namespace sinkgrad::fuzz
