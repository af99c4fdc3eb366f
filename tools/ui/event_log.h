// TensorBoard's event files: scalars of a run over its updates. Format: length-prefixed protobuf messages, each with two masked CRC-32C sums
// (tensorflow/core/lib/io/record_writer.cc, tensorflow/core/util/event.proto).
#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sinkgrad {

/// CRC-32C (Castagnoli), rotated and shifted as records have it.
uint32_t masked_crc32c(std::string_view bytes);

/// Writes one file events.out.tfevents.*; every record goes out in one piece. All members throw IoError when the disk refuses.
class EventLog {
 public:
  /// A new file in the folder. After a resume `first_step` is the first update to come: TensorBoard then forgets what earlier files of the folder
  /// hold from there on. 0 for a new run. `time`: Unix seconds.
  EventLog(const std::filesystem::path& folder, int64_t first_step, double time);
  /// One record with a scalar per name.
  void write(double time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void append(std::string_view message);
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace sinkgrad
