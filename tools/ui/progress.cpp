// A rewritten line is padded with spaces to the length of the one before: no terminal needs to understand an escape sequence.
#include "tools/ui/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "core/check.h"
#include "core/names.h"

namespace sinkgrad {
namespace {

/// Labels come from file names and recipes: control characters would move the cursor or break the log's lines.
std::string without_controls(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }  // UTF-8

size_t width(const std::string& text) { return static_cast<size_t>(std::count_if(text.begin(), text.end(), starts_character)); }

std::string cut(const std::string& text, size_t columns) {
  size_t bytes = 0;
  for (size_t seen = 0; bytes < text.size(); ++bytes)
    if (starts_character(text[bytes]) && ++seen > columns) break;
  return text.substr(0, bytes);
}

std::string shown(const std::pair<std::string, double>& value) { return fmt::format("{} {:.4g}", without_controls(value.first), value.second); }

int percent(int64_t done, int64_t total) {
  return static_cast<int>(100 * std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0));
}

}  // namespace

ProgressMode parse_progress_mode(const std::string& name) {
  static const std::vector<std::string> names = {"auto", "bar", "plain", "never"};
  const auto found = std::find(names.begin(), names.end(), name);
  require<InputError>(found != names.end(), "--progress requires auto, bar, plain or never, got '", name, "'", did_you_mean(name, names));
  return static_cast<ProgressMode>(found - names.begin());
}

Terminal Terminal::standard_error() {
  const auto columns = [] {
    winsize size{};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return int{size.ws_col};
    const char* variable = std::getenv("COLUMNS");
    const int told = variable ? std::atoi(variable) : 0;
    return told > 0 ? told : 80;
  };
  const auto clock = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const char* type = std::getenv("TERM");
  return {&std::cerr, ::isatty(STDERR_FILENO) == 1, type ? type : "", columns, clock};
}

Progress::Progress(const ProgressOptions& options, Terminal terminal) : options_(options), terminal_(std::move(terminal)) {
  if (options_.mode == ProgressMode::automatic) {
    const bool rewrites = terminal_.is_terminal && !terminal_.type.empty() && terminal_.type != "dumb";
    options_.mode = rewrites ? ProgressMode::bar : ProgressMode::plain;
  }
  if (options_.quiet) options_.mode = ProgressMode::never;
}

Progress::~Progress() {
  if (open_columns_ > 0) *terminal_.out << '\n' << std::flush;
}

void Progress::update(const std::string& label, int64_t done, int64_t total, const std::vector<std::pair<std::string, double>>& values) {
  if (options_.mode == ProgressMode::never) return;
  const double now = terminal_.clock();
  if (!started_with_) {
    started_with_ = done;
    started_at_ = now;
  }
  state_ = {without_controls(label), done, total, values};
  pending_ = true;
  const double interval = options_.mode == ProgressMode::bar ? options_.bar_interval : options_.plain_interval;
  if (!shown_at_ || now - *shown_at_ >= interval) show();
}

void Progress::finish() {
  if (pending_) show();
  if (open_columns_ > 0) *terminal_.out << '\n' << std::flush;
  open_columns_ = 0;
}

void Progress::note(const std::string& text) {
  if (options_.quiet) return;
  const bool redraw = open_columns_ > 0;
  if (redraw) {
    rewrite("");
    *terminal_.out << '\r';
    open_columns_ = 0;
  }
  *terminal_.out << without_controls(text) << '\n' << std::flush;
  if (redraw) show();
}

void Progress::show() {
  shown_at_ = terminal_.clock();
  pending_ = false;
  if (options_.mode == ProgressMode::plain) {
    *terminal_.out << plain_line() << '\n' << std::flush;
  } else {
    // Writing into the last column would wrap the line on many terminals.
    rewrite(bar_line(static_cast<size_t>(std::max(terminal_.columns() - 1, 1))));
  }
}

void Progress::rewrite(const std::string& text) {
  // After the window became narrower, padding to the old length would wrap.
  const size_t limit = static_cast<size_t>(std::max(terminal_.columns() - 1, 1));
  const size_t columns = width(text), covered = std::min(open_columns_, limit);
  *terminal_.out << '\r' << text << std::string(covered > columns ? covered - columns : 0, ' ') << std::flush;
  open_columns_ = columns;
}

std::string Progress::remaining() const {
  const int64_t seen = state_.done - started_with_.value_or(0);
  if (state_.total <= 0 || seen <= 0 || state_.done >= state_.total) return "";
  const double per_update = (terminal_.clock() - started_at_) / static_cast<double>(seen);
  return "ETA " + format_duration(per_update * static_cast<double>(state_.total - state_.done));
}

std::string Progress::bar_line(size_t columns) const {
  const std::string eta = remaining();
  const bool known = state_.total > 0;
  const std::string place = known ? fmt::format("{:3}%", percent(state_.done, state_.total)) : fmt::format("step {}", state_.done);
  std::string tail;
  // The longest tail that fits: values are dropped from the last, then the remaining time.
  for (size_t kept = state_.values.size() + 1; kept-- > 0;) {
    tail = "  " + place;
    for (size_t i = 0; i < kept; ++i) tail += "  " + shown(state_.values[i]);
    if (!eta.empty()) tail += "  " + eta;
    if (width(state_.label) + width(tail) <= columns) break;
    if (kept == 0) tail = "  " + place;
  }
  std::string bar;
  const size_t used = width(state_.label) + width(tail), spare = columns > used ? columns - used : 0;
  constexpr size_t kFrame = 4, kLeast = 6, kMost = 30;  // two spaces and two brackets; cells
  if (known && spare >= kFrame + kLeast) {
    const size_t cells = std::min(spare - kFrame, kMost);
    const auto full = static_cast<size_t>(percent(state_.done, state_.total)) * cells / 100;
    bar = "  [" + std::string(full, '#') + std::string(cells - full, '.') + "]";
  }
  return cut(state_.label + bar + tail, columns);
}

std::string Progress::plain_line() const {
  std::string line = fmt::format("{}  step {}", state_.label, state_.done);
  if (state_.total > 0) line += fmt::format("/{} ({}%)", state_.total, percent(state_.done, state_.total));
  for (const auto& value : state_.values) line += "  " + shown(value);
  const std::string eta = remaining();
  return eta.empty() ? line : line + "  " + eta;
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "?";
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d{:02}h", s / 86400, s / 3600 % 24);
}

}  // namespace sinkgrad
