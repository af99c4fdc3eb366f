// Recipes that need no data train offline until they have learned. Label slow: a few minutes.
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "tools/ui/metrics.h"

using namespace sinkgrad;
namespace fs = std::filesystem;

namespace {

/// Test accuracy after the last epoch.
double accuracy(const std::string& recipe, const std::string& more = "") {
  std::string folder = (fs::temp_directory_path() / "learning-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()));
  const int status = std::system(("'" SINKGRAD_PROGRAM "' train " + recipe + " -q --out " + folder + "/run " + more + " >/dev/null").c_str());
  REQUIRE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  const double value = read_metrics(fs::path(folder) / "run/metrics.jsonl").rows.back().value("acc");
  fs::remove_all(folder);
  UNSCOPED_INFO(recipe << " " << more << ": " << value);
  return value;
}

}  // namespace

TEST_CASE("shapes: the Set Sinkformer and the PCT are right above 85 percent") {
  CHECK(accuracy("set_shapes_small") > 0.85);
  CHECK(accuracy("pct_shapes_small") > 0.85);
  CHECK(accuracy("pct_shapes_small", "--set model.iterations=3") > 0.85);
}

TEST_CASE("digits: above 90 percent") { CHECK(accuracy("digits_patch_small") > 0.90); }

TEST_CASE("silhouettes: above 85 percent") { CHECK(accuracy("silhouettes_vit_small") > 0.85); }
