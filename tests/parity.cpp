// parity: runs every reference file of the folder SINKGRAD_FIXTURES (default: shared/fixtures beside the source tree), whatever its name,
// and prints the worst relative error of each output and gradient. Exit 0: all within tolerance; 1: not; 77: no folder.
#include "parity.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "ops/cpu/instructions.h"

namespace parity {
namespace {

/// Prints the file's line; whether it passed.
bool run(const std::filesystem::path& path, const std::filesystem::path& folder, const std::vector<Family>& families) {
  const std::string name = std::filesystem::relative(path, folder).string();
  try {
    const Fixture fixture(path);
    const auto family = std::find_if(families.begin(), families.end(), [&](const Family& f) { return f.matches(fixture); });
    require<InputError>(family != families.end(), "its keys belong to no family that this program knows");
    Comparison comparison(fixture);
    family->run(fixture, comparison);
    const bool ok = comparison.finish();
    std::printf("%s %s (%s)%s\n", ok ? "ok  " : "FAIL", name.c_str(), family->name, comparison.summary().c_str());
    return ok;
  } catch (const std::exception& error) {
    std::printf("FAIL %s: %s\n", name.c_str(), error.what());
    return false;
  }
}

int run_all(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    std::printf("skipped: there is no folder %s; set SINKGRAD_FIXTURES\n", folder.c_str());
    return 77;
  }
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  std::sort(files.begin(), files.end());

  std::vector<Family> families = training_families();
  for (const auto& more : {op_families(), model_families()}) families.insert(families.end(), more.begin(), more.end());
  const auto passed = std::count_if(files.begin(), files.end(), [&](const auto& file) { return run(file, folder, families); });
  std::printf("%zu of %zu files within tolerance\n", static_cast<size_t>(passed), files.size());
  return static_cast<size_t>(passed) == files.size() && !files.empty() ? 0 : 1;
}

}  // namespace
}  // namespace parity

int main() {
  sinkgrad::cpu::limit_instructions_by_environment();
  const char* folder = std::getenv("SINKGRAD_FIXTURES");
  return parity::run_all(folder ? std::filesystem::path(folder) : std::filesystem::path(SINKGRAD_SOURCE_DIR) / ".." / "shared" / "fixtures");
}
