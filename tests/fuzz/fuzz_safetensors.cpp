// Checkpoints: the safetensors format.
#include "core/safetensors.h"
#include "fuzz/fuzz.h"

namespace sinkgrad::fuzz {
namespace {

std::string file(const std::string& header, size_t data_bytes) {
  std::string bytes;
  for (size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, '\1');
}

}  // namespace

std::vector<std::string> seeds() {
  return {
      file(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
      file(
          R"({"__metadata__":{"a":"b"},"h":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}})",
          6),
      file(R"({"u":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"e":{"dtype":"I64","shape":[0,9],"data_offsets":[3,3]}})", 3)};
}

void feed(std::string_view input) { parse_safetensors(input, "input"); }

}  // namespace sinkgrad::fuzz
