// The `sinkgrad` program. The one place where errors become exit codes and lines on stderr.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <new>
#include <sstream>
#include <system_error>

#include "core/check.h"
#include "core/names.h"
#include "core/version.h"
#include "datasets/cache.h"
#include "nn/ranks.h"
#include "nn/trainer.h"
#include "ops/cpu/instructions.h"
#include "tools/commands.h"
#include "tools/ui/cache_notes.h"

namespace sinkgrad {
namespace {

constexpr const char* kFooter =
    "Exit codes: 0 ok, 1 a check failed or training diverged, 2 usage or bad input, 3 device not available, 4 out of memory,\n"
    "5 reading or writing failed, 130 or 143 interrupted after saving.\n"
    "Environment: SINKGRAD_DATA and SINKGRAD_CACHE, folders of data and of what is made of it; SINKGRAD_INSTRUCTIONS, the best of sse4, avx2,\n"
    "avx512, avx512_bf16 and amx to use; OMP_NUM_THREADS.";

int exit_code(const std::exception& error) {
  const auto is = [&]<class E>(const E*) { return dynamic_cast<const E*>(&error) != nullptr; };
  if (is(static_cast<const DivergedError*>(nullptr)) || is(static_cast<const RankLost*>(nullptr))) return 1;
  if (is(static_cast<const DeviceError*>(nullptr))) return 3;
  if (is(static_cast<const OutOfMemoryError*>(nullptr)) || is(static_cast<const std::bad_alloc*>(nullptr))) return 4;
  if (is(static_cast<const IoError*>(nullptr)) || is(static_cast<const std::system_error*>(nullptr))) return 5;
  return is(static_cast<const Error*>(nullptr)) ? 2 : 1;
}

/// "; did you mean ...?" for what the command line parser could not use: an option, otherwise a subcommand.
std::string suggestion(const CLI::App& app) {
  const std::vector<std::string> words = app.remaining(true);
  if (words.empty()) return "";
  const auto option = std::find_if(words.begin(), words.end(), [](const std::string& word) { return word.starts_with("-"); });
  std::vector<std::string> known;
  for (const CLI::App* command : app.get_subcommands())
    for (const CLI::Option* each : command->get_options())
      for (const std::string& name : each->get_lnames()) known.push_back("--" + name);
  if (known.empty())
    for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  return did_you_mean(option == words.end() ? words.front() : *option, known);
}

/// OpenMP's waiting threads spin, on a busy machine for longer than the work takes (measured: 8 times slower with one other program running).
/// The runtime reads its settings before main, hence the second start. OMP_WAIT_POLICY or GOMP_SPINCOUNT in the environment decide otherwise.
void limit_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  setenv("GOMP_SPINCOUNT", "1000", 1);
  execv("/proc/self/exe", argv);  // where this fails the program just runs as it is
}

/// A result that could not be written must not look like success.
void flush_results() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw IoError(cat("stdout: writing failed: ", std::strerror(errno)));
}

/// Only training shares its work; anything else would be done once by each process.
void require_shared_work(const Ranks& ranks, const std::string& command) {
  require<InputError>(ranks.is_alone() || command == "train" || command.starts_with("-"), command,
                      ": is the work of one process, mpirun has started ", ranks.size(), "; only train shares its work");
}

/// What the program ends with: exit code, text for stdout, error.
struct Outcome {
  int code = 0;
  std::string text, error;
};

Outcome run(int argc, char** argv) {
  CLI::App app("Trains, evaluates and checks Sinkformers: transformers whose attention is normalised by Sinkhorn's algorithm.", "sinkgrad");
  app.set_version_flag("--version", "sinkgrad " SINKGRAD_VERSION);
  app.require_subcommand(1);
  app.footer(kFooter);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return cat(error.what(), suggestion(*failed), "\nSee sinkgrad --help, or --help after a subcommand.\n");
  });
  add_train(app);
  add_eval(app);
  add_study(app);
  add_info(app);
  add_data(app);
  add_convert(app);
  add_gradcheck(app);
  add_inspect(app);
  add_graph(app);
  add_plot(app);
  add_theory(app);
  add_columns(app);
  add_half_steps(app);
  add_bench(app);
  add_translate(app);
  add_bleu(app);
  add_adapt(app);
  set_cache_listener([](const std::filesystem::path& path) { return tell_of_making(std::cerr, path); });
  try {
    require_shared_work(Ranks::world(), argc > 1 ? argv[1] : "");
    cpu::limit_instructions_by_environment();
    app.parse(argc, argv);
    flush_results();
    return {};
  } catch (const CLI::RuntimeError& error) {  // a subcommand's own exit code
    return {.code = error.get_exit_code()};
  } catch (const CLI::ParseError& error) {  // --help and --version are among them, with exit code 0
    std::ostringstream out, problem;
    const bool ok = app.exit(error, out, problem) == 0;
    return {ok ? 0 : 2, out.str(), problem.str()};
  } catch (const std::exception& error) {
    return {exit_code(error), "", cat(error.what(), "\n")};
  }
}

}  // namespace
}  // namespace sinkgrad

int main(int argc, char** argv) {
  sinkgrad::limit_spinning(argv);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is then an error that names the file
  const sinkgrad::Outcome outcome = sinkgrad::run(argc, argv);
  return sinkgrad::Ranks::leave(outcome.code, [&](const std::string& who) {
    std::cout << outcome.text << std::flush;
    if (!outcome.error.empty()) std::cerr << "sinkgrad: " << who << outcome.error << std::flush;
  });
}
