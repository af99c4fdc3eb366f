// The safetensors format (https://github.com/huggingface/safetensors), strict on reading and writing. Nothing else knows it.
// A file is u64 header length, JSON header, data; the offsets in the header must tile the data exactly.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace sinkgrad {

/// Longest header that is read or written, in bytes; the limit of the reference implementation.
inline constexpr uint64_t kSafetensorsHeaderLimit = 100'000'000;

struct SafetensorsFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// Parses a whole file. F32, F64, I32 and I64 keep their dtype, F16 and BF16 become f32, U8 and BOOL become i32; other dtypes are refused.
/// InputError for anything malformed; messages begin with `path`.
SafetensorsFile parse_safetensors(std::string_view bytes, const std::string& path, uint64_t header_limit = kSafetensorsHeaderLimit);

/// Reads and parses a file. IoError when it cannot be read.
SafetensorsFile read_safetensors(const std::filesystem::path& path, uint64_t header_limit = kSafetensorsHeaderLimit);

/// A tensor to be written: dense CPU memory and its name.
struct NamedView {
  std::string name;
  View view;
};

/// Writes a file atomically (see AtomicFile), 8-byte types first and then by name. Bytes depend on names, values and metadata alone.
/// InputError for a repeated or reserved name, or a header above the limit; the existing file then stays as it is.
void write_safetensors(const std::filesystem::path& path, std::span<const NamedView> tensors, const std::map<std::string, std::string>& metadata = {},
                       uint64_t header_limit = kSafetensorsHeaderLimit);

}  // namespace sinkgrad
