// What libFuzzer calls. Only errors of core/check.h may leave a parser, each one printable sentence; anything else ends the program.
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "fuzz/fuzz.h"

namespace {

constexpr size_t kLongestSentence = 2000;

void check_sentence(const std::string& text) {
  bool ok = !text.empty() && text.size() <= kLongestSentence;
  for (const char c : text) ok &= c == '\t' || (c & 0xE0) != 0;  // no control characters, no second line
  if (ok) return;
  std::fprintf(stderr, "an error must be one printable sentence of at most %zu bytes, got %zu: %s\n", kLongestSentence, text.size(), text.c_str());
  std::abort();
}

}  // namespace

/// Puts the seeds into the first corpus folder of the command line.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::filesystem::path folder = (*argv)[i];
    if (!std::filesystem::is_directory(folder)) continue;
    const std::vector<std::string> seeds = sinkgrad::fuzz::seeds();
    for (size_t k = 0; k < seeds.size(); ++k) std::ofstream(folder / ("seed" + std::to_string(k)), std::ios::binary) << seeds[k];
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    sinkgrad::fuzz::feed({reinterpret_cast<const char*>(data), size});
  } catch (const sinkgrad::Error& error) {
    check_sentence(error.what());
  }
  return 0;
}
