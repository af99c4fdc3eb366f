// Training by several processes: the same losses as by one, sums of gradients bucket by bucket, and how a job ends that is stopped, broken or wrong.
// Needs an mpirun of the MPI that the program was built with; without one only the refusal is tested.
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "core/rng.h"
#include "nn/checkpoint.h"
#include "nn/gradient_sum.h"
#include "nn/layers.h"
#include "ops/ops.h"
#include "program.h"
#include "tools/ui/metrics.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

constexpr const char* kMpirun = SINKGRAD_SOURCE_DIR "/tools/mpirun.sh";

std::string on_ranks(int ranks) { return std::string("'") + kMpirun + "' " + std::to_string(ranks); }

bool skipped() {
  const bool absent = Ranks::library().empty() || std::system("command -v mpirun >/dev/null") != 0;
  if (absent) WARN("skipped: " << (Ranks::library().empty() ? "this build has no MPI" : "there is no mpirun"));
  return absent;
}

constexpr const char* kVit =
    R"({"model": {"name": "vit", "patch": 8, "dim": 16, "depth": 2, "heads": 2, "head_dim": 8, "mlp_dim": 32, "iterations": 3},
  "data": {"name": "silhouettes", "size": 16, "train": 61, "test": 33}, "optimizer": {"name": "adamw", "lr": 0.003, "clip_norm": 1}, "epochs": 2,
  "batch_size": 12, "eval_batch_size": 32})";  // six batches, the last of one item; the last of the test set, too
constexpr const char* kSets = R"({"model": {"name": "set_transformer", "dim": 10, "heads": 2, "inducing": 3, "dropout": 0.3, "iterations": 3},
  "data": {"name": "shapes", "points": 9, "train": 30, "test": 10, "augment": true}, "optimizer": {"name": "adam", "lr": 0.01}, "epochs": 2,
  "batch_size": 7, "checkpoint_every": 1})";
constexpr const char* kTranslator =
    R"({"model": {"name": "translator", "dim": 12, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "mlp_dim": 24,
  "dropout": 0.1, "iterations": 3}, "data": {"name": "number_words", "train": 150, "valid": 40}, "loss": {"label_smoothing": 0.1, "form": "fairseq"},
  "optimizer": {"name": "adamw", "lr": 0.002}, "epochs": 2, "batch_size": 128, "eval_batch_size": 256})";
// Padding that votes: the length of a batch matters.
constexpr const char* kTexts =
    R"({"model": {"name": "text_encoder", "dim": 16, "depth": 1, "heads": 2, "mlp_dim": 16, "dropout": 0.2, "iterations": 3,
  "padding_queries_vote": true, "pool_padding": true}, "data": {"name": "opinions", "train": 50, "test": 20},
  "optimizer": {"name": "adam", "lr": 0.001}, "epochs": 1, "batch_size": 8})";

struct Job : TemporaryFolder {
  std::string recipe = *this / "recipe.json";
  explicit Job(const char* json) { write_file(recipe, json); }
  std::string train(const std::string& out, const std::string& more = "") const {
    return "train " + recipe + " --log-every 1 --threads 1 --progress never --out " + (path / out).string() + " " + more;
  }
  Result alone(const std::string& out, const std::string& more = "") const { return run(train(out, more)); }
  Result together(int ranks, const std::string& out, const std::string& more = "") const { return run(train(out, more), on_ranks(ranks)); }
  fs::path last(const std::string& out) const { return path / out / "last.safetensors"; }
};

/// What was measured, without what depends on the clock or on memory.
std::vector<MetricsRow> rows(const fs::path& run) {
  std::vector<MetricsRow> all = read_metrics(run / "metrics.jsonl").rows;
  const std::set<std::string> beside = {"items_s", "mem", "waited"};
  for (MetricsRow& row : all) std::erase_if(row.values, [&](const auto& value) { return beside.contains(value.first); });
  return all;
}

void check_same_rows(const fs::path& run, const fs::path& other) {
  const auto a = rows(run), b = rows(other);
  REQUIRE(a.size() == b.size());
  CHECK(a.size() > 3);
  for (size_t i = 0; i < a.size(); ++i) {
    INFO(a[i].split << " " << a[i].step);
    CHECK((a[i].split == b[i].split && a[i].step == b[i].step));
    REQUIRE(a[i].values.size() == b[i].values.size());
    for (size_t k = 0; k < a[i].values.size(); ++k) {
      INFO(a[i].values[k].first);
      CHECK(a[i].values[k].second == Approx(b[i].values[k].second).margin(1e-5).epsilon(0));
    }
  }
}

/// One sentence of the program, by whichever ranks.
void check_said_once(const Result& result, int code, const std::string& sentence) {
  INFO(result.err);
  CHECK(result.code == code);
  CHECK_THAT(result.err, Contains(sentence));
  const size_t first = result.err.find("sinkgrad: ");
  CHECK(first != std::string::npos);
  CHECK(result.err.find("sinkgrad: ", first + 1) == std::string::npos);
}

/// A layer that is used twice, one that is not used, and a part of another.
struct Net : Module {
  Linear first{*this, "first", 6, 8}, twice{*this, "twice", 8, 8}, unused{*this, "unused", 4, 4}, last{*this, "last", 8, 5};
  Parameter& table = parameter("table", {7, 5}, Init::constant(0.5));
  Tensor x = Tensor({3, 6}, DType::f32);
  Var loss(Tape& tape, int rank) {
    RandomStream random(1, "input", static_cast<uint64_t>(rank));
    for (float& value : x.span<float>()) value = static_cast<float>(random.normal());
    const Var y = last(relu(twice(relu(twice(relu(first(tape.leaf(x))))))));
    return mean(mul(add(y, table.rows(tape, rank, rank + 3)), y));
  }
};

}  // namespace

TEST_CASE("processes that cannot be one job are refused, once") {
  const TemporaryFolder folder;
  for (const char* rank : {"0", "1"}) {
    const Result result = run("train set_shapes_small --out " + (folder / "run"), std::string("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=") + rank);
    CHECK(result.code == 2);
    CHECK(!fs::exists(folder.path / "run"));
    if (*rank == '0')
      CHECK_THAT(result.err, Contains("mpirun: has started 2 processes"));
    else
      CHECK(result.err == "");
  }
}

TEST_CASE("ranks train the ViT to the losses of one process") {
  if (skipped()) return;
  const Job job(kVit);
  REQUIRE(job.alone("1").code == 0);
  for (const int ranks : {2, 4}) {
    INFO(ranks << " ranks");
    const Result result = job.together(ranks, std::to_string(ranks));
    INFO(result.err);
    REQUIRE(result.code == 0);
    CHECK_THAT(result.out, Contains("test accuracy"));
    CHECK(std::count(result.out.begin(), result.out.end(), '\n') == 1);
    check_same_rows(job.path / "1", job.path / std::to_string(ranks));
  }
  REQUIRE(job.together(2, "again").code == 0);
  CHECK(read_file(job.last("again"), 1 << 26) == read_file(job.last("2"), 1 << 26));
}

TEST_CASE("dropout, padding and labels that do not count are shared as one process has them") {
  if (skipped()) return;
  for (const char* recipe : {kSets, kTranslator, kTexts}) {
    INFO(recipe);
    const Job job(recipe);
    REQUIRE(job.alone("1").code == 0);
    const Result result = job.together(3, "3");
    INFO(result.err);
    REQUIRE(result.code == 0);
    check_same_rows(job.path / "1", job.path / "3");
  }
}

TEST_CASE("a run goes on with another number of ranks") {
  if (skipped()) return;
  const Job job(kVit);
  REQUIRE(job.alone("whole").code == 0);
  REQUIRE(job.together(2, "parts", "--max-steps 4").code == 0);
  REQUIRE(job.together(3, "parts", "--max-steps 8 --resume").code == 0);
  REQUIRE(job.alone("parts", "--resume").code == 0);
  check_same_rows(job.path / "whole", job.path / "parts");
}

TEST_CASE("a rank that dies ends the job with a sentence and a checkpoint that resumes") {
  if (skipped()) return;
  const Job job(kSets);
  for (const std::string dead : {"0", "1"}) {
    const std::string run_name = "run" + dead, pid = job / "pid";
    // Each rank notes its process and becomes the program; a third process kills one of them in the midst of training.
    const std::string command = on_ranks(2) + " sh -c 'echo $$ >" + pid + "$OMPI_COMM_WORLD_RANK; exec \"$0\" \"$@\"'";
    std::thread killer([&] {
      for (int64_t step = 0; step < 3; std::this_thread::sleep_for(std::chrono::milliseconds(10)))
        if (fs::exists(job.last(run_name))) step = read_checkpoint(job.last(run_name)).state.step;
      kill(std::stoi(read_file(pid + dead, 100)), SIGKILL);
    });
    const Result result = run(job.train(run_name, "--set epochs=1000000"), command);
    killer.join();
    check_said_once(result, 128 + SIGKILL, "training: rank " + dead + " of 2 has died, the others cannot go on; update ");
    const int64_t step = read_checkpoint(job.last(run_name)).state.step;
    CHECK(step >= 3);
    CHECK_THAT(result.err, Contains("--resume goes on from there"));
    CHECK(job.together(2, run_name, "--set epochs=1000000 --resume --max-steps " + std::to_string(step + 2)).code == 0);
    CHECK(read_checkpoint(job.last(run_name)).state.step == step + 2);
  }
}

TEST_CASE("a signal to the job or to one rank stops all ranks after the same update, saved") {
  if (skipped()) return;
  const Job job(kSets);
  for (const std::string to : {"job", "rank"}) {
    const std::string pid = job / "pid",
                      start = to == "job" ? "sh -c 'echo $$ >" + pid + "; exec \"$0\" \"$@\"' " + on_ranks(2)
                                          : on_ranks(2) + " sh -c '[ $OMPI_COMM_WORLD_RANK = 0 ] || echo $$ >" + pid + "; exec \"$0\" \"$@\"'";
    std::thread stopper([&] {
      for (int64_t step = 0; step < 3; std::this_thread::sleep_for(std::chrono::milliseconds(10)))
        if (fs::exists(job.last(to))) step = read_checkpoint(job.last(to)).state.step;
      kill(std::stoi(read_file(pid, 100)), SIGTERM);
    });
    const Result result = run(job.train(to, "--set epochs=1000000"), start);
    stopper.join();
    INFO(to << ": " << result.err);
    CHECK(result.code == 128 + SIGTERM);
    const int64_t step = read_checkpoint(job.last(to)).state.step;
    CHECK_THAT(result.err, Contains("interrupted: update " + std::to_string(step) + " is saved in"));
    CHECK(result.err.find("interrupted") == result.err.rfind("interrupted"));
    CHECK(rows(job.path / to).back().step == step);
    CHECK(job.alone(to, "--set epochs=1000000 --resume --max-steps " + std::to_string(step + 1)).code == 0);
  }
}

TEST_CASE("what cannot be trained by several ranks is refused, once") {
  if (skipped()) return;
  const Job job(kSets);
  const auto refused = [&](const Result& result, const char* sentence) {
    check_said_once(result, 2, sentence);
    CHECK(!fs::exists(job.path / "no"));
  };
  refused(run("train no_such_recipe --out " + (job / "no"), on_ranks(2)), "no_such_recipe");
  refused(run("info", on_ranks(2)), "info: is the work of one process, mpirun has started 2");
  refused(run("train --no-such-option x", on_ranks(2)), "--no-such-option");
  refused(job.together(4, "no", "--set batch_size=3"), "training: a batch needs an item for each rank, got 3 for 4 ranks");
  refused(job.together(2, "no", "--device cuda:0"), "train: 2 ranks take a GPU each with --device cuda, got cuda:0");
  refused(run("train pct_shapes_small --set data.train=8 --set data.test=8 --out " + (job / "no"), on_ranks(2)),
          "training: the model normalises over the whole batch (");
  const auto second_differs = [&](const std::string& option) {
    return job.together(1, "no", ": -n 1 '" SINKGRAD_PROGRAM "' " + job.train("no", option));
  };
  refused(second_differs("--set optimizer.lr=0.5"), "the ranks must do the same: on rank 1 recipe/optimizer/lr was 0.01, is 0.5 (rank 0 first)");
  refused(second_differs("--set data.seed=9"), "recipe/data/seed");
  refused(second_differs("--max-steps 2"), "options");

  REQUIRE(job.alone("used").code == 0);
  check_said_once(job.together(2, "used"), 2, "metrics.jsonl");  // what the first rank alone finds
}

TEST_CASE("a loss or gradient that is not finite stops all ranks with one sentence") {
  if (skipped()) return;
  const Job job(kVit);
  check_said_once(job.together(2, "loss", "--set optimizer.lr=1e38 --set optimizer.clip_norm=0"), 1, " at update ");
  CHECK(read_checkpoint(job.last("loss")).state.step == 0);
  check_said_once(job.together(2, "checked", "--check-finite --set optimizer.lr=1e38 --set optimizer.clip_norm=0"), 1, "not finite at update ");
}

TEST_CASE("gradients are summed bucket by bucket", "[.][job]") {  // started by the next test
  const Ranks ranks = Ranks::world();
  REQUIRE(ranks.size() == 3);
  for (const int64_t bytes : {1, 200, 1 << 20}) {
    Net net;
    ParameterPack pack(net, DType::f32, 1);
    pack.zero_gradients();
    Tape tape;
    for (int rank = 0; rank < 2; ++rank) {  // the third has no items
      tape.backward(net.loss(tape, rank));
      tape.reset();
    }
    const std::vector<double> wanted = to_doubles(pack.gradients().view());
    GradientSum sum(pack, ranks, bytes);
    CHECK(sum.buckets() == (bytes == 1 ? 9 : bytes == 200 ? 4 : 1));
    for (int step = 0; step < 2; ++step) {
      pack.zero_gradients();
      sum.start(tape);
      if (ranks.rank() < 2) tape.backward(net.loss(tape, ranks.rank()));
      sum.finish(tape);
      CHECK(tape.observer() == nullptr);
      tape.reset();
      CHECK(sum.overlapped() == (ranks.rank() < 2 ? sum.buckets() : 0));
      const std::vector<double> found = to_doubles(pack.gradients().view());
      for (size_t i = 0; i < wanted.size(); ++i) CHECK(found[i] == Approx(wanted[i]).margin(1e-6));
    }
  }
  double values[] = {1.0 + ranks.rank(), 0.5};
  ranks.sum(values);
  CHECK((values[0] == 6 && values[1] == 1.5));
  CHECK(ranks.largest(-ranks.rank()) == 0);
  CHECK(ranks.first_text(ranks.rank() == 0 ? "" : "rank " + std::to_string(ranks.rank())) == "rank 1");
  CHECK(ranks.first_text("") == "");
  CHECK(ranks.agree(7));
  CHECK(!ranks.agree(ranks.rank() == 2 ? 8 : 7));
  CHECK(!ranks.agree(ranks.rank() == 2 ? 6 : 7));
  CHECK_THROWS_WITH(ranks.on_first([] { throw Error("only here"); }), "only here");
  Ranks::leave(0, [](const std::string&) {});
}

TEST_CASE("the sum of gradients of three ranks, one without items, is that of one process") {
  if (skipped()) return;
  const TemporaryFolder folder;
  const std::string self = fs::read_symlink("/proc/self/exe").string();
  const int status = std::system((on_ranks(3) + " '" + self + "' '[job]' >" + (folder / "out") + " 2>&1").c_str());
  INFO(read_file(folder / "out", 1 << 20));
  CHECK(status == 0);
}

TEST_CASE("one rank has nobody to wait for") {
  const Ranks ranks;
  CHECK((ranks.is_alone() && ranks.is_first() && ranks.size() == 1));
  double value[] = {3};
  ranks.sum(value);
  CHECK(value[0] == 3);
  CHECK(ranks.first_text("text") == "text");
  CHECK(ranks.agree(1));
  CHECK(ranks.largest(4) == 4);
  int calls = 0;
  ranks.on_first([&] { ++calls; });
  CHECK(calls == 1);
}
