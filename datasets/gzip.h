// Gzip files: recognised by their first two bytes, decompressed whole with a limit on the result.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace sinkgrad {

/// True for bytes that begin with the gzip magic 1f 8b.
bool is_gzip(std::string_view bytes);

/// Decompresses all members of a gzip stream. InputError when it is truncated, damaged, followed by other bytes or longer than max_bytes.
std::string gunzip(std::string_view compressed, const std::string& path, uint64_t max_bytes);

/// Content of a file that may be compressed; at most max_bytes before and after decompression.
std::string read_maybe_gzip(const std::filesystem::path& path, uint64_t max_bytes);

}  // namespace sinkgrad
