// The program from outside: runs it and keeps what it said.
#pragma once
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

#include "core/file.h"
#include "temporary_folder.h"

struct Result {
  int code;
  std::string out, err;
};

/// Runs `sinkgrad arguments` with standard input from a file. `setting` may set environment variables.
inline Result run(const std::string& arguments, const std::string& setting = "", const std::string& input = "/dev/null") {
  const sinkgrad::TemporaryFolder folder;
  const std::string command = setting + " '" SINKGRAD_PROGRAM "' " + arguments + " >" + (folder / "out") + " 2>" + (folder / "err") + " <" + input;
  const int status = std::system(command.c_str());
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), sinkgrad::read_file(folder / "out", 1 << 26), sinkgrad::read_file(folder / "err", 1 << 26)};
}
