// `sinkgrad data`: which files a data set needs, where they come from, whether what lies there is whole. Hashes and downloads are left to
// the programs of the system: md5sum, sha256sum, curl.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstring>
#include <filesystem>
#include <memory>

#include "core/check.h"
#include "tools/commands.h"
#include "tools/experiment.h"

extern char** environ;

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

struct DataCommand {
  std::string name;
  std::vector<std::string> settings;
  bool download = false;
};

struct Finished {
  int code;
  std::string output;  // stdout, where it was asked for
};

/// Runs a program found on the PATH and waits for it.
Finished run_program(std::vector<std::string> words, bool capture) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  int pipe_ends[2];
  require<IoError>(::pipe(pipe_ends) == 0, words[0], ": a pipe could not be made: ", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (capture) posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, pipe_ends[0]);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, words[0].c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(pipe_ends[1]);
  Finished done{127, ""};
  if (error == 0) {
    std::array<char, 4096> buffer;
    for (ssize_t n; capture && (n = ::read(pipe_ends[0], buffer.data(), buffer.size())) > 0;)
      done.output.append(buffer.data(), static_cast<size_t>(n));
    int status = 0;
    ::waitpid(child, &status, 0);
    done.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }
  ::close(pipe_ends[0]);
  require<IoError>(done.code != 127, words[0], ": the program could not be started");
  return done;
}

std::string hash_of(const fs::path& path, const std::string& hash) {
  const Finished done = run_program({hash + "sum", "--", path.string()}, true);
  require<IoError>(done.code == 0, path.string(), ": ", hash, "sum failed");
  const std::string digest = done.output.substr(0, done.output.find(' '));
  return digest.starts_with('\\') ? digest.substr(1) : digest;  // the program marks names that it had to escape
}

/// Empty when the file is as published, as far as that is known.
std::string fault_of(const fs::path& path, const PublishedFile& file) {
  const auto bytes = static_cast<int64_t>(fs::file_size(path));
  if (file.bytes > 0 && bytes != file.bytes) return fmt::format("must have {} bytes, got {}", file.bytes, bytes);
  if (file.checksum.empty()) return "";
  const std::string found = hash_of(path, file.hash);
  return found == file.checksum ? "" : fmt::format("its {} must be {}, got {}", file.hash, file.checksum, found);
}

void download(const PublishedFile& file, const fs::path& to) {
  std::error_code error;
  fs::create_directories(to.parent_path(), error);
  require<IoError>(!error, to.parent_path().string(), ": creating the folder failed: ", error.message());
  const fs::path part = to.string() + ".part";
  const Finished done = run_program({"curl", "--fail", "--location", "--silent", "--show-error", "--output", part.string(), "--", file.url}, false);
  const std::string fault = done.code == 0 ? fault_of(part, file) : "";
  if (done.code == 0 && fault.empty()) return fs::rename(part, to);
  fs::remove(part, error);
  require<IoError>(done.code == 0, file.url, ": curl could not fetch it (exit code ", done.code, ")");
  throw IoError(cat(file.url, ": ", fault));
}

void print_block(const char* title, const std::string& text) {
  fmt::print("{}\n", title);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    fmt::print("  {}\n", text.substr(begin, end - begin));
    begin = end + 1;
  }
}

/// Whether no file that is there differs from the published one.
bool print_files(const DataDescription& description, const fs::path& folder, bool fetch) {
  bool sound = true;
  fmt::print("published files\n");
  for (const PublishedFile& file : description.files) {
    const fs::path path = (folder / file.name).lexically_normal();
    if (fetch && !fs::exists(path) && !file.url.empty()) download(file, path);
    const std::string fault = fs::exists(path) ? fault_of(path, file) : "";
    sound = sound && fault.empty();
    const char* unhashed = file.checksum.empty() ? " (no checksum known)" : "";
    fmt::print("  {}{}{}: {}{}\n", file.name, file.checksum.empty() ? "" : fmt::format(", {} {}", file.hash, file.checksum),
               file.url.empty() ? "" : ", " + file.url,
               !fs::exists(path) ? "absent"
               : fault.empty()   ? "as published"
                                 : fault,
               fs::exists(path) && fault.empty() ? unhashed : "");
  }
  return sound;
}

void data(const DataCommand& command) {
  if (command.name.empty()) {
    for (const std::string& name : dataset_names()) fmt::print("{:<16}  {}\n", name, dataset_description(name).summary);
    return;
  }
  Recipe recipe;
  recipe.name = command.name;
  recipe.data = dataset_defaults(command.name);
  recipe.data["name"] = command.name;
  for (const std::string& setting : command.settings) recipe.set("data." + setting);
  nlohmann::json options = recipe.data;
  options.erase("name");
  const DataDescription description = dataset_description(command.name);
  const fs::path folder = dataset_folder(command.name, options);
  fmt::print("{}\n", description.summary);
  if (!folder.empty()) print_block("folder", fs::absolute(folder).lexically_normal().string());
  print_block("layout", description.layout);
  if (!description.origin.empty()) print_block("origin", description.origin);
  const bool sound = description.files.empty() || print_files(description, folder, command.download);
  std::fflush(stdout);  // before what goes wrong below
  const DataSplits splits = make_dataset(command.name, options);
  fmt::print("content\n  {}\n  {}\n", splits.train->description(), splits.test->description());
  if (!sound) throw CLI::RuntimeError(1);
}

}  // namespace

void add_data(CLI::App& app) {
  const auto options = std::make_shared<DataCommand>();
  CLI::App* command = app.add_subcommand("data", "Say which files a data set needs, check those that are there, fetch them");
  command->footer(
      "Relative folders lie in $SINKGRAD_DATA, or in ./data. Exits with 5 when files are missing, 1 when one is not as published.\n"
      "Example: sinkgrad data mnist --set folder=/srv/mnist --download");
  command->add_option("name", options->name, "a data set [list what there is]");
  command->add_option("--set", options->settings, "KEY=VALUE, changes one option of the data set; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_flag("--download", options->download, "fetch published files that are not there, with curl");
  command->callback([options] { data(*options); });
}

}  // namespace sinkgrad
