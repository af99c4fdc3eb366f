// Progress of a long run: on a terminal one rewritten line that fits its width, elsewhere a plain line every few seconds.
// No colours and no escape sequences are ever written (so NO_COLOR holds); the rewritten line needs a carriage return only.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace sinkgrad {

enum class ProgressMode { automatic, bar, plain, never };

/// "auto", "bar", "plain" or "never"; InputError otherwise.
ProgressMode parse_progress_mode(const std::string& name);

/// Where progress goes and how time passes; tests bring their own.
struct Terminal {
  std::ostream* out;
  bool is_terminal;
  std::string type;               // $TERM
  std::function<int()> columns;   // asked before each line: windows are resized
  std::function<double()> clock;  // seconds, never decreasing
  static Terminal standard_error();
};

struct ProgressOptions {
  ProgressMode mode = ProgressMode::automatic;
  bool quiet = false;          // neither progress nor notes
  double plain_interval = 10;  // seconds between plain lines
  double bar_interval = 0.1;   // seconds between rewrites
};

class Progress {
 public:
  /// Automatic mode is bar on a terminal that is not "dumb", else plain.
  explicit Progress(const ProgressOptions& options = {}, Terminal terminal = Terminal::standard_error());
  /// Ends an open line, so that what follows (an error message) starts on a fresh one.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `label` is short ("epoch 3/45"); `done` of `total` updates of the whole run (total 0: unknown). The remaining time is estimated from
  /// the updates seen, so a resumed run is right. Values are shown with four digits, the most important first.
  void update(const std::string& label, int64_t done, int64_t total, const std::vector<std::pair<std::string, double>>& values = {});
  /// Shows the last update if the interval held it back, and ends the line.
  void finish();
  /// A line that stays, above the progress line.
  void note(const std::string& text);

 private:
  struct State {
    std::string label;
    int64_t done, total;
    std::vector<std::pair<std::string, double>> values;
  };
  void show();
  void rewrite(const std::string& text);
  std::string remaining() const;
  std::string bar_line(size_t columns) const;
  std::string plain_line() const;

  ProgressOptions options_;
  Terminal terminal_;
  State state_{};
  bool pending_ = false;                 // state_ is not shown yet
  size_t open_columns_ = 0;              // of the line that the next rewrite must cover
  std::optional<double> shown_at_;       // time of the last line
  double started_at_ = 0;                // time of the first update
  std::optional<int64_t> started_with_;  // its `done`
};

/// "45s", "12m30s", "3h05m", "2d04h".
std::string format_duration(double seconds);

}  // namespace sinkgrad
