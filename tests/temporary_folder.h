// A folder for the files of a test, gone with the object.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "core/check.h"

namespace sinkgrad {

struct TemporaryFolder {
  std::filesystem::path path;
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "sinkgrad-XXXXXX").string();
    require<IoError>(::mkdtemp(name.data()) != nullptr, name, ": a temporary folder cannot be made");
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const char* name) const { return (path / name).string(); }
};

}  // namespace sinkgrad
