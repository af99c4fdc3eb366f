// simt: runs the CUDA kernels of every registered op on the host executor and compares them with the CPU in float64; or proves that
// each of their barriers is needed.
#include <chrono>
#include <cstdio>
#include <thread>

#include "core/op.h"
#include "simt/executor.h"
#include "simt/simt_mutants.h"

using namespace sinkgrad;
using namespace sinkgrad::simt;

namespace {

constexpr const char* kHelp = R"(simt [OP...] [options]
  Runs every sample of the ops (default: all) with their CUDA kernels on the host executor, forward and backward, in f64 and
  f32, and compares with the CPU in f64. Races, indices out of bounds and barriers that not all threads reach are failures.

  --schedule S       order of the threads: warp_ahead (default), random or reverse
  --seed N           of the order and of nothing else (default 1)
  --dtype f32|f64    judge this one only
  --jobs N           processes at once (default: one per core)
  --time-limit S     seconds of a processor for one sample (default 120)
  --multiprocessors N, --architecture A
                     of the GPU that kernels are told of (default 1, which makes loops over a grid go round; 90)

  --list-barriers    print the barriers in the kernels instead, and who reaches them
  --mutate-barriers  skip each barrier in turn and run the samples that reach it: one must fail
  --with PROGRAM     for these two: also the test cases of this program; may be repeated
  --markdown         the table for docs/gpu.md

  simt softmax --schedule random --seed 7
  simt --mutate-barriers --with build/tests/simt/simt_attention
Exit status: 0 all is well, 1 something failed or a barrier is not missed, 2 usage.
)";

struct Arguments {
  std::vector<std::string> ops, programs;
  std::optional<DType> dtype;
  RunOptions run;
  std::optional<BarrierTask> barriers;
  bool markdown = false;
};

const char* name_of(Schedule s) { return s == Schedule::warp_ahead ? "warp_ahead" : s == Schedule::random ? "random" : "reverse"; }

Arguments parse(int argc, char** argv) {
  Arguments a;
  a.run.jobs = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    auto value = [&]() -> std::string {
      require<InputError>(i + 1 < argc, word, ": a value must follow");
      return argv[++i];
    };
    auto number = [&]() {
      const std::string text = value();
      char* end = nullptr;
      const unsigned long long n = std::strtoull(text.c_str(), &end, 10);
      require<InputError>(!text.empty() && *end == 0 && text[0] != '-', word, ": a number is required, got '", text, "'");
      return n;
    };
    if (word == "--help" || word == "-h") {
      std::printf("%s", kHelp);
      std::exit(0);
    } else if (word == "--schedule") {
      const std::string name = value();
      bool known = false;
      for (const Schedule s : {Schedule::warp_ahead, Schedule::random, Schedule::reverse})
        if (name == name_of(s)) {
          settings().schedule = s;
          known = true;
        }
      require<InputError>(known, word, ": warp_ahead, random or reverse is required, got '", name, "'");
    } else if (word == "--dtype") {
      const std::string name = value();
      require<InputError>(name == "f32" || name == "f64", word, ": f32 or f64 is required, got '", name, "'");
      a.dtype = name == "f32" ? DType::f32 : DType::f64;
    } else if (word == "--seed") {
      settings().seed = number();
    } else if (word == "--multiprocessors") {
      settings().multiprocessors = std::max(1, static_cast<int>(number()));
    } else if (word == "--architecture") {
      settings().architecture = static_cast<int>(number());
    } else if (word == "--jobs") {
      a.run.jobs = std::max(1, static_cast<int>(number()));
    } else if (word == "--time-limit") {
      a.run.time_limit = static_cast<double>(number());
    } else if (word == "--list-barriers") {
      a.barriers = BarrierTask::list;
    } else if (word == "--mutate-barriers") {
      a.barriers = BarrierTask::mutate;
    } else if (word == "--with") {
      a.programs.push_back(value());
    } else if (word == "--markdown") {
      a.markdown = true;
    } else {
      require<InputError>(word[0] != '-', word, ": unknown option; simt --help lists them");
      find_op(word);
      a.ops.push_back(word);
    }
  }
  require<InputError>(a.barriers || (a.programs.empty() && !a.markdown), "--with and --markdown belong to --list-barriers and --mutate-barriers");
  return a;
}

/// Compares the ops, prints a line for each and what failed; returns the number of failures.
int check(const std::vector<std::string>& ops, const std::vector<Case>& cases, const RunOptions& run) {
  struct Group {
    size_t samples = 0, open = 0;
    double seconds = 0;
    std::string failures;
    int failed = 0;
  };
  std::map<std::string, Group> groups;
  for (const Case& c : cases) ++groups[c.group].samples, ++groups[c.group].open;
  size_t next = 0;  // ops are printed in order, as soon as they are through
  int failures = 0;
  run_cases(cases, run, [&](size_t i, const CaseEnd& end) {
    Group& g = groups[cases[i].group];
    --g.open;
    g.seconds += end.seconds;
    if (!end.failure.empty()) {
      ++g.failed;
      ++failures;
      g.failures += cat("  ", cases[i].group, ", ", cases[i].name, ": ", end.failure, end.failure.back() == '\n' ? "" : "\n");
    }
    for (; next < ops.size() && groups[ops[next]].open == 0; ++next) {
      const Group& done = groups[ops[next]];
      std::printf("%-24s %3zu samples %7.2f s  %s\n", ops[next].c_str(), done.samples, done.seconds,
                  done.failed ? cat(done.failed, " FAILED").c_str() : "ok");
      std::printf("%s", done.failures.c_str());
      std::fflush(stdout);
    }
  });
  return failures;
}

int run(int argc, char** argv) {
  const auto start = std::chrono::steady_clock::now();
  Arguments a = parse(argc, argv);
  MutantOptions options;
  static_cast<RunOptions&>(options) = a.run;
  options.markdown = a.markdown;
#ifdef SINKGRAD_SOURCE_DIR
  if (a.ops.empty()) options.sources = SINKGRAD_SOURCE_DIR "/cuda";
#endif
  if (a.ops.empty())
    for (const OpDef* op : registered_ops()) a.ops.emplace_back(op->name);
  std::vector<Case> cases;
  auto add = [&](const std::vector<Case>& more) { cases.insert(cases.end(), more.begin(), more.end()); };
  for (const std::string& op : a.ops) add(cases_of_op(op, a.dtype));
  for (const std::string& program : a.programs) add(cases_of_program(program));

  int failures = 0;
  if (a.barriers) {
    options.task = *a.barriers;
    failures = examine_barriers(cases, options);
  } else {
    failures = check(a.ops, cases, a.run);
  }
  std::printf("%zu ops, %zu cases, schedule %s, seed %llu: %s, %.1f s\n", a.ops.size(), cases.size(), name_of(settings().schedule),
              static_cast<unsigned long long>(settings().seed), failures ? cat(failures, " FAILED").c_str() : "all is well",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return failures ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "simt: %s\n", e.what());
    return 2;
  }
}
