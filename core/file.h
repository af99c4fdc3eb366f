// Files as a whole: reading with a limit, and writing that leaves either the old file or the complete new one.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace sinkgrad {

/// All bytes of a regular file or a pipe, such as a shell's <(command). IoError when it is neither or cannot be read, or when nobody has the
/// pipe open for writing within a second; InputError when there are more than max_bytes.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

/// For readers of other libraries: IoError when what is at `path` is a folder, a device, or a pipe, which opening may wait for without end.
void require_regular(const std::filesystem::path& path);

/// A file that appears under its name only on commit(): the bytes go to a temporary file in the same directory, which is fsynced and
/// renamed. Without commit() (an exception) the temporary file is removed; those of killed processes are removed by the next
/// AtomicFile in that directory. IoError names the path and the system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  void write(const void* data, size_t bytes);
  void write(std::string_view bytes) { write(bytes.data(), bytes.size()); }
  /// Bytes so far.
  uint64_t written() const { return written_; }
  /// Puts the file in place, on disk when this returns. Nothing can be written afterwards.
  void commit();

 private:
  void check(bool ok, const char* doing) const;
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
  uint64_t written_ = 0;
};

/// Writes a small file atomically.
void write_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace sinkgrad
