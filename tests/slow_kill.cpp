// A training process that is killed at random moments, in the middle of a save among them, goes on from a whole checkpoint and ends as if nothing
// had happened.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "core/file.h"
#include "core/rng.h"
#include "nn/checkpoint.h"
#include "temporary_folder.h"
#include "tools/ui/metrics.h"

using namespace sinkgrad;
namespace fs = std::filesystem;

namespace {

constexpr int kKills = 200;

/// Wide enough for a save to take about as long as an update; every update is saved.
constexpr const char* kRecipe = R"({"model": {"name": "set_transformer", "dim": 128, "heads": 2, "inducing": 4, "dropout": 0.3, "iterations": 3},
  "data": {"name": "shapes", "points": 8, "train": 20, "test": 8, "augment": true}, "optimizer": {"name": "adamw", "lr": 0.01},
  "epochs": 1000000, "batch_size": 4, "checkpoint_every": 1})";

pid_t start(const std::string& recipe, const fs::path& run, bool resume, int64_t max_steps) {
  std::vector<std::string> words = {"sinkgrad", "train", recipe, "--out", run.string(), "-q", "--threads", "1", "--log-every", "1"};
  if (resume) words.push_back("--resume");
  if (max_steps) words.insert(words.end(), {"--max-steps", std::to_string(max_steps)});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    execv(SINKGRAD_PROGRAM, arguments.data());
    _exit(99);
  }
  return child;
}

int finish(pid_t child) {
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

std::vector<std::string> rows(const fs::path& run) {
  std::vector<std::string> lines;
  for (const MetricsRow& row : read_metrics(run / "metrics.jsonl").rows) {
    std::string line = row.split + " " + std::to_string(row.step);
    for (const auto& [name, value] : row.values)
      if (name != "items_s") line += " " + name + "=" + nlohmann::json(value).dump();
    lines.push_back(line);
  }
  return lines;
}

/// Of its files, but for TensorBoard's: every life has one of its own.
std::vector<std::string> names(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (const std::string name = entry.path().filename(); !name.starts_with("events.")) found.push_back(name);
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

TEST_CASE("a run that is killed 200 times ends bitwise equal to one that was left alone") {
  const TemporaryFolder folder;
  const std::string recipe = folder / "recipe.json";
  write_file(recipe, kRecipe);
  const fs::path run = folder / "run", whole = folder / "whole", last = run / "last.safetensors";
  const auto seconds_to_first = [&] {
    const auto begin = std::chrono::steady_clock::now();
    const pid_t child = start(recipe, run, false, 0);
    while (!fs::exists(last)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kill(child, SIGKILL);
    CHECK(WIFSIGNALED(finish(child)));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }();

  RandomStream random(1, "kill");
  int64_t step = 0, lost_in_save = 0, advanced = 0;
  for (int k = 1; k < kKills; ++k) {
    const pid_t child = start(recipe, run, true, 0);
    std::this_thread::sleep_for(std::chrono::duration<double>(2.5 * seconds_to_first * random.uniform()));
    kill(child, SIGKILL);
    const int status = finish(child);
    REQUIRE(WIFSIGNALED(status));
    for (const std::string& name : names(run)) lost_in_save += name.ends_with(".tmp");
    const int64_t now = read_checkpoint(last).state.step;  // throws unless the file is whole
    REQUIRE(now >= step);
    advanced += now > step;
    step = now;
  }
  INFO(advanced << " of " << kKills << " lives came further, " << lost_in_save << " temporary files were seen after a kill");
  CHECK(advanced > kKills / 10);
  CHECK(lost_in_save > 0);

  REQUIRE(finish(start(recipe, run, true, step + 5)) == 0);
  REQUIRE(finish(start(recipe, whole, false, step + 5)) == 0);
  CHECK(read_file(last, 1 << 26) == read_file(whole / "last.safetensors", 1 << 26));
  CHECK(rows(run) == rows(whole));
  CHECK(names(run) == names(whole));
}
