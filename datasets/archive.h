// Files inside an archive (tar or zip, compressed by gzip, bzip2, xz, zstd or not at all) without unpacking it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace sinkgrad {

/// Calls use(name, content) for every regular file whose name `wanted` accepts, in the order of the archive. InputError naming archive and
/// place when it is damaged or a file exceeds max_bytes; IoError when it cannot be opened.
void read_archive(const std::filesystem::path& path, const std::function<bool(const std::string&)>& wanted,
                  const std::function<void(const std::string&, std::string)>& use, uint64_t max_bytes = uint64_t{64} << 20);

}  // namespace sinkgrad
