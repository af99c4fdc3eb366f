// The program from outside: exit codes, what goes to stdout and stderr, and runs that are stopped and resumed.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <regex>
#include <thread>

#include "program.h"
#include "tools/ui/metrics.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

std::string read(const fs::path& path) { return read_file(path, uint64_t{1} << 26); }

/// A recipe that runs in a moment, with dropout, shuffling, new data in each epoch and a last partial batch (7 batches an epoch).
struct TinyRecipe : TemporaryFolder {
  std::string file = *this / "tiny.json";
  TinyRecipe() {
    write_file(file, R"({"model": {"name": "set_transformer", "dim": 16, "heads": 2, "inducing": 4, "dropout": 0.3, "iterations": 3},
      "data": {"name": "shapes", "points": 24, "train": 52, "test": 24, "augment": true}, "schedule": {"name": "step", "milestones": [1]},
      "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.01, "clip_norm": 1}, "epochs": 2, "batch_size": 8, "checkpoint_every": 3})");
  }
  std::string train(const char* out, const std::string& more = "") const { return "train " + file + " --out " + (*this / out) + " " + more; }
};

/// The rows without what depends on the clock.
std::vector<std::string> rows(const fs::path& run) {
  std::vector<std::string> lines;
  for (const MetricsRow& row : read_metrics(run / "metrics.jsonl").rows) {
    std::string line = row.split + " " + std::to_string(row.step) + " " + std::to_string(row.epoch);
    for (const auto& [name, value] : row.values)
      if (name != "items_s") line += " " + name + "=" + nlohmann::json(value).dump();
    lines.push_back(line);
  }
  return lines;
}

/// Starts a long run, sends it `signal` once it trains, and returns its exit code and what it wrote to stderr.
Result interrupt(const TinyRecipe& recipe, const char* out, int signal) {
  const std::string err = recipe / "err", folder = recipe / out;
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const int file = open(err.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    dup2(file, STDERR_FILENO);
    execl(SINKGRAD_PROGRAM, "sinkgrad", "train", recipe.file.c_str(), "--out", folder.c_str(), "--set", "epochs=100000", nullptr);
    _exit(99);
  }
  for (int i = 0; i < 3000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::error_code absent;
    if (fs::exists(fs::path(folder) / "best.safetensors", absent)) break;
  }
  kill(child, signal);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), "", read(err)};
}

}  // namespace

TEST_CASE("every subcommand explains itself with an example") {
  CHECK(std::regex_match(run("--version").out, std::regex("sinkgrad [0-9]+\\.[0-9]+\\.[0-9]+\n")));
  const Result help = run("--help");
  CHECK(help.code == 0);
  CHECK_THAT(help.out, Contains("Exit codes: 0 ok"));
  for (const char* command : {"train", "eval", "study", "columns", "half-steps", "adapt", "bleu", "convert", "info", "data", "gradcheck", "graph",
                              "inspect", "plot", "theory"}) {
    CAPTURE(command);
    CHECK_THAT(help.out, Contains(command));
    const Result own = run(std::string(command) + " --help");
    CHECK(own.code == 0);
    CHECK_THAT(own.out, Contains(std::string("Example: sinkgrad ") + command));
  }
}

TEST_CASE("usage errors exit with 2 and a suggestion") {
  const TinyRecipe recipe;
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "subcommand is required"},
           {"trian", "did you mean 'train'?"},
           {"train " + recipe.file + " --thread 3", "did you mean '--threads'?"},
           {"train no_such_recipe", "unknown recipe 'no_such_recipe'"},
           {"train set_shapes_smal", "did you mean 'set_shapes_small'?"},
           {recipe.train("run", "--set optimizer.lrr=1"), "optimizer.lr"},
           {recipe.train("run", "--set model.iteration=1"), "did you mean 'iterations'?"},
           {recipe.train("run", "--set data.point=1"), "did you mean 'points'?"},
           {recipe.train("run", "--set description=a\xff"), "must be UTF-8"},
           {recipe.train("run", "--threads 0"), "--threads"},
           {recipe.train("run", "--resume"), "there is nothing to resume"},
           {"info " + recipe.file + "x.json", "x.json"},
       }) {
    CAPTURE(arguments);
    const Result result = run(arguments);
    CHECK(result.code == (message == "x.json" ? 5 : 2));
    CHECK_THAT(result.err, Contains(message) && Contains("sinkgrad: "));
    CHECK(result.out.empty());
  }
  CHECK_FALSE(fs::exists(recipe / "run"));
}

TEST_CASE("a failing disk exits with 5, divergence with 1, a broken checkpoint with 2") {
  const TinyRecipe recipe;
  write_file(recipe / "file", "");
  CHECK(run(recipe.train("file/run")).code == 5);
  CHECK(run("eval " + (recipe / "absent.safetensors")).code == 5);
  CHECK(run("train mnist_patch_small --out " + (recipe / "mnist"), "SINKGRAD_DATA=/nonexistent").code == 5);
  write_file(recipe / "broken.safetensors", "1234567890");
  for (const char* command : {"eval ", "info "}) CHECK(run(command + (recipe / "broken.safetensors")).code == 2);

  const Result diverged = run(recipe.train("diverged", "--set optimizer.lr=1e30 --set optimizer.name=sgd"));
  CHECK(diverged.code == 1);
  CHECK_THAT(diverged.err, Contains("training: the loss is") && Contains("at update "));
}

TEST_CASE("fault 58: the result goes to stdout, progress to stderr without control characters") {
  const TinyRecipe recipe;
  const Result result = run(recipe.train("run"), "TERM=xterm");
  CHECK(result.code == 0);
  CHECK(std::regex_match(
      result.out, std::regex("tiny: test accuracy [0-9.]+% \\(best [0-9.]+% after epoch [12]\\), test loss [0-9.]+, 14 updates, [0-9.]+ s\n")));
  CHECK(result.err.find_first_of("\r\x1b\b") == std::string::npos);
  CHECK_THAT(result.err, Contains("epoch 2/2: test accuracy"));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') < 15);
  for (const char* name : {"config.json", "metrics.jsonl", "last.safetensors", "best.safetensors"})
    CHECK(fs::exists(fs::path(recipe / "run") / name));

  const Result quiet = run(recipe.train("quiet", "--quiet"));
  CHECK(quiet.code == 0);
  CHECK(quiet.err.empty());
  CHECK_FALSE(quiet.out.empty());
}

TEST_CASE("fault 53: stopping and resuming leaves the same files, whatever the number of threads") {
  const TinyRecipe recipe;
  REQUIRE(run(recipe.train("whole", "-q --threads 1")).code == 0);
  REQUIRE(run(recipe.train("parts", "-q --threads 2 --max-steps 4")).code == 0);
  CHECK(rows(recipe / "parts").size() == 4);
  REQUIRE(run(recipe.train("parts", "-q --threads 1 --max-steps 7 --resume")).code == 0);
  const Result last = run(recipe.train("parts", "-q --threads 2 --resume"));
  REQUIRE(last.code == 0);
  for (const char* name : {"last.safetensors", "best.safetensors", "config.json"})
    CHECK((read(fs::path(recipe / "whole") / name) == read(fs::path(recipe / "parts") / name)));
  CHECK(rows(recipe / "whole") == rows(recipe / "parts"));
  CHECK(rows(recipe / "whole").size() == 14 + 2);
}

TEST_CASE("watching attention adds its rows and changes no other, also when the run is resumed") {
  const TinyRecipe recipe;
  REQUIRE(run(recipe.train("plain", "-q")).code == 0);
  REQUIRE(run(recipe.train("watched", "-q --attention-every 5")).code == 0);
  REQUIRE(run(recipe.train("parts", "-q --attention-every 5 --max-steps 7")).code == 0);
  REQUIRE(run(recipe.train("parts", "-q --attention-every 5 --resume")).code == 0);
  std::vector<std::string> others, attention;
  for (const std::string& row : rows(recipe.path / "watched")) (row.starts_with("attention") ? attention : others).push_back(row);
  CHECK(others == rows(recipe.path / "plain"));
  REQUIRE(attention.size() == 3);  // updates 0, 5, 10
  CHECK_THAT(attention[1], Contains("attention 5 ") && Contains("attention.4.1.entropy="));
  CHECK(rows(recipe.path / "parts") == rows(recipe.path / "watched"));
  CHECK(read(recipe.path / "watched/last.safetensors") == read(recipe.path / "plain/last.safetensors"));

  REQUIRE(run("plot " + (recipe / "watched") + " --attention --out " + (recipe / "page.html")).code == 0);
  CHECK_THAT(read(recipe / "page.html"), Contains("Layer 4: entropy"));
  REQUIRE(run("plot " + (recipe / "watched") + " --split attention --metric attention.0.1.entropy --out " + (recipe / "one.svg")).code == 0);
  const Result svg = run("plot " + (recipe / "watched") + " --attention --out " + (recipe / "two.svg"));
  CHECK((svg.code == 2 && svg.err.find("requires a name that ends in .html") != std::string::npos));
  CHECK(run("plot " + (recipe / "plain") + " --attention --out " + (recipe / "none.html")).code == 2);
  CHECK_FALSE(fs::exists(recipe / "none.html"));
  const Result upstream = run("train pct_shapes_small --attention-every 5 --set data.train=24 --set data.test=24 --out " + (recipe / "pct"));
  CHECK(upstream.code == 2);
  CHECK_THAT(upstream.err, Contains("requires a model with softmax or Sinkhorn attention, 'pct_shapes_small' has none"));
  CHECK_FALSE(fs::exists(recipe / "pct"));
}

TEST_CASE("no run overwrites another, and a resumed one keeps its recipe") {
  const TinyRecipe recipe;
  REQUIRE(run(recipe.train("run", "-q --max-steps 3")).code == 0);
  const std::string before = read(fs::path(recipe / "run") / "last.safetensors");
  CHECK(run(recipe.train("run")).code == 2);
  const Result other = run(recipe.train("run", "--resume --set optimizer.lr=0.5 --set model.dropout=0.1"));
  CHECK(other.code == 2);
  CHECK_THAT(other.err, Contains("optimizer/lr was 0.01, is 0.5") && Contains("model/dropout was 0.3, is 0.1"));
  CHECK(run(recipe.train("run", "--resume --seed 9")).code == 2);
  CHECK(read(fs::path(recipe / "run") / "last.safetensors") == before);
  // More epochs are welcome.
  CHECK(run(recipe.train("run", "-q --resume --set epochs=3")).code == 0);
  CHECK(rows(recipe / "run").size() == 3 * 7 + 3);
}

TEST_CASE("SIGINT and SIGTERM save, say where and exit with 130 and 143") {
  for (const auto& [signal, code] : {std::pair{SIGINT, 130}, {SIGTERM, 143}}) {
    const TinyRecipe recipe;
    const Result stopped = interrupt(recipe, "Ann's run", signal);
    CHECK(stopped.code == code);
    std::smatch match;
    REQUIRE(std::regex_search(stopped.err, match,
                              std::regex("interrupted: update ([0-9]+) is saved in (.*)/last.safetensors; continue with: sinkgrad (.*)")));
    // What it advises works, and goes on as if nothing had happened.
    const std::string end = " -q --max-steps " + std::to_string(std::stoi(match[1]) + 5);
    CHECK(run(match[3].str() + end).code == 0);
    CHECK(run(recipe.train("whole", "--set epochs=100000" + end)).code == 0);
    CHECK((read(fs::path(recipe / "Ann's run") / "last.safetensors") == read(fs::path(recipe / "whole") / "last.safetensors")));
    CHECK(rows(recipe / "Ann's run") == rows(recipe / "whole"));
  }
}

TEST_CASE("eval repeats the accuracy of training for every batch size") {
  const TinyRecipe recipe;
  const Result trained = run(recipe.train("run", "-q"));
  std::smatch match;
  REQUIRE(std::regex_search(trained.out, match, std::regex("test accuracy ([0-9.]+%)")));
  for (const char* batch : {"1", "7", "256"}) {
    const Result result = run("eval " + (recipe / "run/last.safetensors") + " --batch-size " + batch);
    CHECK(result.code == 0);
    CHECK_THAT(result.out, Contains("test accuracy " + match[1].str() + " (") && Contains(" of 24), loss "));
  }
  CHECK_THAT(run("eval " + (recipe / "run/best.safetensors") + " --data test=12").out, Contains(" of 12)"));
  CHECK_THAT(run("eval " + (recipe / "run/best.safetensors") + " --split train").out, Contains(" of 52)"));
  CHECK(run("eval " + (recipe / "run/best.safetensors") + " --data tests=12").code == 2);
}

TEST_CASE("a model that answers NaN has no score") {
  const TinyRecipe recipe;
  REQUIRE(run(recipe.train("run", "-q --max-steps 1")).code == 0);
  const std::string path = recipe / "run/last.safetensors";
  std::string bytes = read_file(path, 1 << 24);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  size_t spoiled = 0;
  const auto tensors = nlohmann::json::parse(bytes.substr(8, header));
  for (const auto& [name, tensor] : tensors.items())
    if (name.starts_with("model.")) {
      std::memcpy(bytes.data() + 8 + header + tensor.at("data_offsets").at(0).get<size_t>(), &nan, 4);
      ++spoiled;
    }
  REQUIRE(spoiled > 0);
  write_file(path, bytes);
  for (const std::string& command : {"eval " + path, "half-steps " + path + " --out " + (recipe / "h.svg")}) {
    CAPTURE(command);
    const Result result = run(command);
    CHECK(result.code == 1);
    CHECK_THAT(result.err, Contains("sinkgrad: " + path + ": the loss is not finite\n"));
  }
  CHECK_FALSE(fs::exists(recipe / "h.svg"));
}

TEST_CASE("checkpoints whose log is gone are not written over, and resume with a new log") {
  const TinyRecipe recipe;
  REQUIRE(run(recipe.train("run", "-q --max-steps 3")).code == 0);
  fs::remove(recipe.path / "run/metrics.jsonl");
  const fs::path last = recipe.path / "run/last.safetensors";
  const std::string before = read_file(last, 1 << 24);
  const Result again = run(recipe.train("run", "-q --max-steps 1"));
  CHECK(again.code == 2);
  CHECK_THAT(again.err, Contains(last.string() + ": a new run requires a folder without checkpoints, resume that run or choose another folder"));
  CHECK(read_file(last, 1 << 24) == before);
  CHECK(run(recipe.train("run", "-q --resume --max-steps 5")).code == 0);
  CHECK(fs::exists(recipe.path / "run/metrics.jsonl"));
  CHECK(read_file(last, 1 << 24) != before);
}

TEST_CASE("where a checkpoint is missing or a folder is named, eval and plot name what there is") {
  const TinyRecipe recipe;
  REQUIRE(run(recipe.train("run", "-q --max-steps 3")).code == 0);
  const std::string folder = recipe / "run", best = folder + "/best.safetensors", last = folder + "/last.safetensors";
  const Result early = run("eval " + best), whole = run("eval " + folder);
  CHECK(early.code == 5);
  CHECK(early.err == "sinkgrad: " + best + ": is written after a run's first whole epoch, this one has not had any; there is " + last + "\n");
  CHECK(whole.code == 2);
  CHECK(whole.err == "sinkgrad: " + folder + ": is a folder, a checkpoint is a file in it: " + last + "\n");
  CHECK_THAT(run("plot " + folder + " --split test --out " + (recipe / "x.svg")).err,
             Contains("no run has measured 'loss' on the split asked for; that is done after each whole epoch, before the first `sinkgrad eval` "
                      "tells it of last.safetensors"));
  CHECK_THAT(run("plot " + folder + " --split attention --out " + (recipe / "x.svg")).err, Contains("on the split asked for\n"));
  REQUIRE(run(recipe.train("run", "-q --resume")).code == 0);
  CHECK(run("eval " + folder).err == "sinkgrad: " + folder + ": is a folder, a checkpoint is a file in it: " + best + "\n");
  CHECK_THAT(run("eval " + recipe.path.string()).err,
             Contains(": is a folder, a checkpoint is a file that `sinkgrad train` writes, and there is none in it\n"));
}

TEST_CASE("the complete recipe is itself a recipe") {
  const TinyRecipe recipe;
  const Result first = run("train " + recipe.file + " --print-config --seed 5 --set optimizer.betas=[0.8,0.99]");
  CHECK(first.code == 0);
  CHECK_THAT(first.out, Contains("\"seed\": 5") && Contains("\"layer_norm\": true") && Contains("\"noise\""));
  write_file(recipe / "again.json", first.out);
  CHECK(run("train " + (recipe / "again.json") + " --print-config").out == first.out);
}

TEST_CASE("info describes recipes without their data, and checkpoints") {
  for (const auto& entry : fs::directory_iterator(fs::path(SINKGRAD_SOURCE_DIR) / "recipes")) {
    const std::string name = entry.path().stem();
    CAPTURE(name);
    const Result result = run("info " + name, "SINKGRAD_DATA=/nonexistent");
    CHECK(result.code == 0);
    CHECK_THAT(result.out, Contains("total") && Contains("training\n"));
    CHECK_THAT(run("info").out, Contains(name));
  }
  CHECK_THAT(run("info mnist_patch").out, Contains("76,682"));  // SPEC 2.6
  const TinyRecipe recipe;
  const Result own = run("info " + recipe.file);
  CHECK_THAT(own.out, Contains("weight decay") && Contains("sphere                   5         2"));
  REQUIRE(run(recipe.train("run", "-q")).code == 0);
  CHECK_THAT(run("info " + (recipe / "run/last.safetensors")).out, Contains("14 updates, 2 epochs and 0 batches, best test accuracy"));
}

TEST_CASE("study trains both models and shows them on one page") {
  const TinyRecipe recipe;
  const Result r = run("study '" + recipe.file + "' --half-steps 3 --seeds 2 --set data.augment=false --out " + (recipe / "study"));
  INFO(r.err);
  REQUIRE(r.code == 0);
  CHECK_THAT(r.out, Contains("Transformer") && Contains("Sinkformer, l = 3"));
  const std::string page = read(recipe / "study/study.html");
  CHECK_THAT(page, Contains("3 half-steps: Sinkhorn") && Contains("1 half-step: softmax") && Contains("Learning curves"));
  CHECK_THAT(page, !Contains("<script") && !Contains("http-equiv"));
  // The table shows the median of the runs' last evaluations.
  double sum = 0;
  for (const char* seed : {"study/patch0_l1_seed1", "study/patch0_l1_seed2"})
    sum += 100 * read_metrics(fs::path(recipe / seed) / "metrics.jsonl").rows.back().value("acc");
  char median[16];
  std::snprintf(median, sizeof median, "%.2f %%", sum / 2);
  CHECK_THAT(r.out, Contains(median));
  CHECK(run("study '" + recipe.file + "' --half-steps 1 --out " + (recipe / "other")).code == 2);
  CHECK(run("study '" + recipe.file + "' --half-steps 3 --out " + (recipe / "study")).code == 2);  // no run overwrites another
  REQUIRE(run(recipe.train("run", "-q --max-steps 1")).code == 0);
  for (const char* resume : {"", " --resume"}) {
    const Result foreign = run("study '" + recipe.file + "' --half-steps 3 --out " + (recipe / "run") + resume);
    CHECK(foreign.code == 2);
    CHECK_THAT(foreign.err, Contains("/run: study ") && Contains("in it"));
    CHECK_FALSE(fs::exists(recipe / "run/patch0_l1_seed1"));
  }
}

TEST_CASE("study checks everything before it trains, and continues where it was stopped") {
  const TinyRecipe recipe;
  const std::string study = "study '" + recipe.file + "' --half-steps 3 --set data.augment=false --out " + (recipe / "study");
  for (const char* bad : {" --lr -1", " --lr 0", " --sinkhorn-lr nan", " --seeds 0", " --page page.txt", " --set model.heads=5"}) {
    CAPTURE(bad);
    const Result r = run(study + bad);
    CHECK(r.code == 2);
    CHECK(r.err.size() < 400);
    CHECK_FALSE(fs::exists(recipe / "study"));
  }
  CHECK(run(study + " --page /nonexistent/page.html").code == 5);
  REQUIRE(run(study).code == 0);
  const std::string page = read(recipe / "study/study.html");
  fs::remove_all(recipe / "study/patch0_l3_seed1");  // as if it had been stopped before its second model
  CHECK(run(study + " --resume").code == 0);
  CHECK(read(recipe / "study/study.html") == page);
}

TEST_CASE("errors in the model or data of a recipe name the recipe") {
  const TinyRecipe recipe;
  CHECK_THAT(run("train " + recipe.file + " --set model.iteration=3").err, Contains("tiny") && Contains("'iterations'"));
  CHECK_THAT(run("train " + recipe.file + " --set model.heads=3 --out " + (recipe / "run")).err,
             Contains("tiny") && Contains("heads that divide dim"));
  CHECK_THAT(run("train " + recipe.file + " --set data.point=3").err, Contains("tiny") && Contains("'points'"));
}

TEST_CASE("what cannot be written or read is no success") {
  const TinyRecipe recipe;
  const auto to_full = [](const std::string& arguments) {
    return std::system(("'" SINKGRAD_PROGRAM "' " + arguments + " >/dev/full 2>/dev/null").c_str());
  };
  CHECK(WEXITSTATUS(to_full("gradcheck --list")) == 5);
  CHECK(WEXITSTATUS(to_full("gradcheck --op neg --json")) == 5);
  write_file(recipe / "empty.json", "");
  CHECK(run("gradcheck --replay " + (recipe / "empty.json")).code == 2);
  CHECK(run("gradcheck --op neg --sample -1").code == 2);
  CHECK(run("train " + recipe.file + " --seed -1 --out " + (recipe / "run")).code == 2);
  // A run whose first checkpoint failed may start again.
  fs::create_directories(recipe / "run");
  write_file(recipe / "run/metrics.jsonl", "{\"schema\": 1, \"config\": {}}\n");
  CHECK(run(recipe.train("run", "-q")).code == 0);
}

TEST_CASE("train --check-finite names the op and module of the first bad value, and passes sound runs") {
  const TinyRecipe recipe;
  const Result sound = run(recipe.train("sound", "-q --check-finite"));
  CHECK(sound.code == 0);
  const Result bad = run(recipe.train("bad", "-q --check-finite --set optimizer.lr=1e37"));
  CHECK(bad.code == 1);
  CHECK_THAT(bad.err, Contains("not finite at update ") && Contains("(record ") && Contains("module ") && Contains(" in "));
  CHECK(std::count(bad.err.begin(), bad.err.end(), '\n') == 1);
}

TEST_CASE("an unknown instruction set is refused") {
  const Result result = run("info", "SINKGRAD_INSTRUCTIONS=sse9");
  CHECK(result.code == 2);
  CHECK(result.err == "sinkgrad: SINKGRAD_INSTRUCTIONS: must be sse4, avx2, avx512, avx512_bf16 or amx, got 'sse9'\n");
  CHECK(run("info mnist_patch_small", "SINKGRAD_INSTRUCTIONS=sse4").code == 0);
}
