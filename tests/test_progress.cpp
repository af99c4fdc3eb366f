// Progress lines on a terminal and in a log, and the metrics file.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "core/check.h"
#include "core/file.h"
#include "temporary_folder.h"
#include "tools/ui/metrics.h"
#include "tools/ui/progress.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

/// A terminal in memory whose clock is set by hand.
struct FakeTerminal {
  std::ostringstream out;
  double time = 0;
  int columns = 80;
  Terminal make(bool is_terminal, const std::string& type = "xterm") {
    return {&out, is_terminal, type, [this] { return columns; }, [this] { return time; }};
  }
  size_t count(char c) const {
    const std::string text = out.str();
    return static_cast<size_t>(std::count(text.begin(), text.end(), c));
  }
};

void run_hundred_steps(FakeTerminal& terminal, Progress& progress) {
  for (int step = 1; step <= 100; ++step) {
    terminal.time += 1;
    progress.update("epoch 1/1", step, 100, {{"loss", 1.0 / step}, {"lr", 1e-3}, {"items/s", 1234.5}});
  }
  progress.finish();
}

/// What stands on the last line of a terminal that obeys carriage returns, and the longest line ever written.
struct Screen {
  std::string last_line;
  size_t longest = 0;
  explicit Screen(const std::string& bytes) {
    size_t column = 0;
    for (char c : bytes) {
      if (c == '\r') {
        column = 0;
      } else if (c == '\n') {
        last_line.clear();
        column = 0;
      } else {
        if (last_line.size() <= column) last_line.resize(column + 1, ' ');
        last_line[column++] = c;
        longest = std::max(longest, column);
      }
    }
  }
};

struct MetricsPath : TemporaryFolder {
  std::filesystem::path file() const { return path / "metrics.jsonl"; }
  std::string text() const { return read_file(file(), 1 << 20); }
};

MetricsRow row(int64_t step, double loss) {
  return {.time = 1.5, .step = step, .epoch = static_cast<double>(step) / 10, .split = "train", .values = {{"loss", loss}}};
}

}  // namespace

TEST_CASE("fault 58: a log gets one plain line per interval and no control characters") {
  FakeTerminal terminal;
  {
    Progress progress({}, terminal.make(false));
    run_hundred_steps(terminal, progress);
  }
  const std::string text = terminal.out.str();
  CHECK(terminal.count('\n') == 11);  // steps 1, 11, ..., 91 and the last
  CHECK(std::all_of(text.begin(), text.end(), [](unsigned char c) { return c == '\n' || (c >= 0x20 && c < 0x7f); }));
  CHECK_THAT(text, Contains("epoch 1/1  step 11/100 (11%)  loss 0.09091  lr 0.001  items/s 1234  ETA 1m29s\n"));
  CHECK_THAT(text, Catch::Matchers::EndsWith("step 100/100 (100%)  loss 0.01  lr 0.001  items/s 1234\n"));
}

TEST_CASE("fault 58: TERM=dumb and an unset TERM are treated as a log") {
  for (const char* type : {"dumb", ""}) {
    FakeTerminal terminal;
    Progress progress({}, terminal.make(true, type));
    run_hundred_steps(terminal, progress);
    CHECK(terminal.count('\r') == 0);
    CHECK(terminal.count('\n') == 11);
  }
}

TEST_CASE("fault 58: a terminal gets one rewritten line that fits its width and no escape sequence") {
  for (int columns : {200, 80, 40, 20, 5, 1}) {
    FakeTerminal terminal;
    terminal.columns = columns;
    {
      Progress progress({}, terminal.make(true));
      run_hundred_steps(terminal, progress);
    }
    INFO(columns << " columns:" << terminal.out.str().substr(0, 200));
    CHECK(terminal.count('\n') == 1);
    CHECK(terminal.count('\x1b') == 0);
    CHECK(Screen(terminal.out.str()).longest < static_cast<size_t>(std::max(columns, 2)));
  }
}

TEST_CASE("a narrow terminal keeps the most important values") {
  FakeTerminal terminal;
  terminal.columns = 40;
  Progress progress({}, terminal.make(true));
  for (int step : {0, 20}) {
    terminal.time += 20;
    progress.update("epoch 1/2", step, 100, {{"loss", 0.5}, {"lr", 1e-3}, {"items/s", 1234.5}});
  }
  const std::string line = Screen(terminal.out.str()).last_line;
  CHECK_THAT(line, Contains("epoch 1/2") && Contains("20%") && Contains("loss 0.5") && Contains("ETA 1m20s"));
  CHECK_THAT(line, !Contains("items/s"));
}

TEST_CASE("a shorter line covers the longer one before it, also in a window made narrower") {
  FakeTerminal terminal;
  Progress progress({}, terminal.make(true));
  progress.update("a long label of an epoch", 10, 0, {{"loss", 0.123456}});
  terminal.time = 1;
  progress.update("short", 11, 0);
  std::string line = Screen(terminal.out.str()).last_line;
  line.erase(line.find_last_not_of(' ') + 1);
  CHECK(line == "short  step 11");
  terminal.out.str("");
  progress.update("a long label of an epoch", 10, 0, {{"loss", 0.123456}});
  terminal.time = 2;
  terminal.columns = 12;
  terminal.out.str("");
  progress.update("a", 11, 0);
  CHECK(Screen(terminal.out.str()).longest <= 11);
}

TEST_CASE("rewrites are limited in time but the last state is shown") {
  FakeTerminal terminal;
  Progress progress({}, terminal.make(true));
  for (int step = 1; step <= 1000; ++step) progress.update("e", step, 1000);
  CHECK(terminal.count('\r') == 1);
  progress.finish();
  CHECK_THAT(Screen(terminal.out.str().substr(0, terminal.out.str().size() - 1)).last_line, Contains("100%"));
}

TEST_CASE("fault 58: never and quiet are silent, notes stay unless quiet") {
  for (const bool quiet : {false, true}) {
    FakeTerminal terminal;
    ProgressOptions options;
    options.mode = ProgressMode::never;
    options.quiet = quiet;
    Progress progress(options, terminal.make(true));
    run_hundred_steps(terminal, progress);
    CHECK(terminal.out.str().empty());
    progress.note("saved");
    CHECK(terminal.out.str() == (quiet ? "" : "saved\n"));
  }
  FakeTerminal terminal;
  ProgressOptions options;
  options.mode = ProgressMode::bar;
  options.quiet = true;
  Progress progress(options, terminal.make(true));
  run_hundred_steps(terminal, progress);
  CHECK(terminal.out.str().empty());
}

TEST_CASE("a note stands above the bar, and an error message after it starts on a fresh line") {
  FakeTerminal terminal;
  {
    Progress progress({}, terminal.make(true));
    progress.update("epoch", 5, 10, {{"loss", 1}});
    progress.note("saved\x1b[2J\tlast");
    CHECK_THAT(terminal.out.str(), Contains("saved?[2J?last\n\repoch"));
    CHECK(terminal.count('\n') == 1);
  }
  CHECK(terminal.out.str().back() == '\n');
}

TEST_CASE("the remaining time counts only the updates of this process") {
  FakeTerminal terminal;
  ProgressOptions options;
  options.mode = ProgressMode::plain;
  Progress progress(options, terminal.make(false));
  progress.update("resumed", 900, 1000);
  terminal.time = 50;
  progress.update("resumed", 950, 1000);
  CHECK_THAT(terminal.out.str(), Contains("step 950/1000 (95%)  ETA 50s"));
  CHECK(format_duration(3 * 3600 + 5 * 60) == "3h05m");
  CHECK(format_duration(std::numeric_limits<double>::infinity()) == "?");
}

TEST_CASE("progress modes are parsed") {
  CHECK(parse_progress_mode("plain") == ProgressMode::plain);
  CHECK(parse_progress_mode("auto") == ProgressMode::automatic);
  CHECK_THROWS_WITH(parse_progress_mode("plan"), Contains("did you mean 'plain'?"));
}

TEST_CASE("metrics: rows come back as written, numbers that are not finite as null with their names") {
  const MetricsPath path;
  MetricsWriter writer = MetricsWriter::create(path.file(), {{"config", {{"seed", 3}}}});
  MetricsRow bad = row(2, std::nan(""));
  bad.values.emplace_back("grad_norm", std::numeric_limits<double>::infinity());
  bad.values.emplace_back("lr", 0.1);
  writer.write(row(1, 0.25));
  writer.write(bad);
  // Each row is in the file although the writer is still open.
  CHECK_THAT(path.text(), Contains(R"({"t":1.5,"step":1,"epoch":0.1,"split":"train","loss":0.25})"
                                   "\n"));
  CHECK_THAT(path.text(), Contains(R"("loss":null,"grad_norm":null,"lr":0.1,"nonfinite":"loss,grad_norm"})"));
  const MetricsFile file = read_metrics(path.file());
  CHECK(file.header["config"]["seed"] == 3);
  REQUIRE(file.rows.size() == 2);
  CHECK(file.rows[0].value("loss") == 0.25);
  CHECK(file.rows[0].epoch == 0.1);
  CHECK(std::isnan(file.rows[1].value("loss")));
  CHECK(file.rows[1].has("grad_norm"));
  CHECK(file.rows[1].value("lr") == 0.1);
  CHECK_FALSE(file.torn);
}

TEST_CASE("metrics: resuming cuts back to the step and drops a torn line") {
  const MetricsPath path;
  {
    MetricsWriter writer = MetricsWriter::create(path.file(), nlohmann::json::object());
    for (int64_t step : {10, 20, 30, 40}) writer.write(row(step, 1));
  }
  std::ofstream(path.file(), std::ios::app) << R"({"t":1,"step":5)";
  const MetricsFile torn = read_metrics(path.file());
  CHECK(torn.torn);
  CHECK(torn.rows.size() == 4);
  MetricsWriter writer = MetricsWriter::resume(path.file(), 20);
  writer.write(row(25, 2));
  const MetricsFile file = read_metrics(path.file());
  CHECK_FALSE(file.torn);
  REQUIRE(file.rows.size() == 3);
  CHECK(file.rows[1].step == 20);
  CHECK(file.rows[2].step == 25);
  CHECK_THAT(path.text(), Contains(R"("step":20,"event":"resume","dropped":3})"));
  CHECK_THROWS_WITH(MetricsWriter::create(path.file(), nlohmann::json::object()), Contains("requires a folder without metrics"));
  CHECK_THROWS_AS(MetricsWriter::create(path.path / "absent" / "metrics.jsonl", nlohmann::json::object()), IoError);
}

TEST_CASE("metrics: a malformed line is named by file and number") {
  const MetricsPath path;
  const std::string header = "{\"schema\":1}\n", good = "{\"step\":1,\"split\":\"train\",\"loss\":1}\n";
  const auto error = [&](const std::string& text) -> std::string {
    write_file(path.file(), text);
    try {
      read_metrics(path.file());
    } catch (const InputError& e) {
      return e.what();
    }
    return "no error";
  };
  CHECK(error(header + good) == "no error");
  CHECK_THAT(error(header + good + "{\"step\":\n" + good), Contains("metrics.jsonl:3: requires a JSON object, got '{\"step\":'"));
  CHECK_THAT(error(header + "17\n"), Contains(":2: requires a JSON object"));
  CHECK_THAT(error(header + "\x1b[2J\n"), Contains(":2: requires a JSON object, got '\\x1b[2J'"));
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  CHECK_THAT(error(header + "{\"step\":1,\"split\":" + deep + "}\n"), Contains(":2: requires a JSON object"));
  CHECK_THAT(error(header + "{\"split\":\"train\"}\n"), Contains(":2: requires an integer \"step\" >= 0, got none"));
  CHECK_THAT(error(header + "{\"step\":-1,\"split\":\"train\"}\n"), Contains("got -1"));
  CHECK_THAT(error(header + "{\"step\":1}\n"), Contains(":2: requires a string \"split\""));
  CHECK_THAT(error(header + "{\"step\":1,\"split\":\"train\",\"loss\":\"low\"}\n"), Contains("\"loss\" requires a number or null, got \"low\""));
  CHECK_THAT(error(""), Contains(":1: requires a header"));
  CHECK_THAT(error("{\"sch"), Contains(":1: requires a header"));
  CHECK_THAT(error(good), Contains(":1: requires a header"));
  CHECK_THAT(error("{\"schema\":2}\n"), Contains("reads schema 1, got 2"));
}
