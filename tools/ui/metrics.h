// metrics.jsonl: what a run measured, one JSON object per line. The first line is the run's header, the others are
// {"t", "step", "epoch", "split", "loss", "acc", "lr", ...}. A number that is not finite is written as null and named under "nonfinite".
// TensorBoard's event files beside it hold the same numbers, tagged "name/split".
#pragma once
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tools/ui/event_log.h"

namespace sinkgrad {

struct MetricsRow {
  double time = 0;   // Unix seconds; the writer fills in the present when 0
  int64_t step = 0;  // updates done
  double epoch = 0;  // epochs done, with a fraction inside an epoch
  std::string split;
  /// In the order in which they are written; NaN and infinities are allowed (both are read back as NaN).
  std::vector<std::pair<std::string, double>> values;

  /// The value of `name`; NaN when the row has none (see `has`).
  double value(const std::string& name) const;
  bool has(const std::string& name) const;
};

struct MetricsFile {
  nlohmann::json header;
  std::vector<MetricsRow> rows;
  /// The last line was cut off by a crash and is not among the rows.
  bool torn = false;
};

/// InputError with path and line for anything malformed but a torn last line; IoError when the file cannot be read.
MetricsFile read_metrics(const std::filesystem::path& path);

/// Appends rows; each is in the file when write() returns.
class MetricsWriter {
 public:
  /// Starts a new file with `header` (an object). InputError when there is one already: no run overwrites another.
  static MetricsWriter create(const std::filesystem::path& path, const nlohmann::json& header);
  /// Continues a run at `step`: drops later rows and a torn last line, and notes the fact by a line {"t", "step", "event": "resume", "dropped"}.
  static MetricsWriter resume(const std::filesystem::path& path, int64_t step);
  /// IoError when the disk refuses.
  void write(const MetricsRow& row);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  MetricsWriter(std::filesystem::path path, int64_t first_step);
  void append(const nlohmann::ordered_json& object);
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  EventLog events_;
};

}  // namespace sinkgrad
