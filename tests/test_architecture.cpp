// The layers of the design, held by reading the sources: who may include whom, and that no op is lost on the way to the registry.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "core/op.h"

namespace fs = std::filesystem;

namespace {

const fs::path kRoot = SINKGRAD_SOURCE_DIR;

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  REQUIRE(in);
  std::ostringstream s;
  s << in.rdbuf();
  return s.str();
}

std::vector<fs::path> sources(const std::string& folder) {
  std::vector<fs::path> found;
  if (!fs::exists(kRoot / folder)) return found;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / folder))
    if (const std::string e = entry.path().extension(); e == ".h" || e == ".cpp" || e == ".cu") found.push_back(entry.path());
  return found;
}

size_t count_of(const std::string& text, const std::regex& what) {
  return static_cast<size_t>(std::distance(std::sregex_iterator(text.begin(), text.end(), what), std::sregex_iterator()));
}

}  // namespace

TEST_CASE("includes go one way: tools, models, nn, ops, core") {
  const std::map<std::string, std::set<std::string>> allowed = {{"core", {"core"}},
                                                                {"ops", {"core", "ops"}},
                                                                {"cuda", {"core", "ops", "cuda", "simt"}},
                                                                {"datasets", {"core", "datasets"}},
                                                                {"nn", {"core", "ops", "nn", "datasets"}},
                                                                {"models", {"core", "ops", "nn", "models", "datasets"}}};
  const std::regex include(R"re(#include "([^"]*)")re");
  for (const auto& [folder, may_include] : allowed)
    for (const fs::path& file : sources(folder)) {
      const std::string text = text_of(file);
      for (std::sregex_iterator i(text.begin(), text.end(), include), end; i != end; ++i) {
        const std::string target = (*i)[1], top = target.substr(0, target.find('/'));
        INFO(fs::relative(file, kRoot).string() << " includes " << target);
        CHECK(may_include.count(top) == 1);
        CHECK((fs::exists(kRoot / target) || (top == "simt" && fs::exists(kRoot / "tests" / target))));
        if (folder == "cuda") {  // the host executor stands in for the device in one place; CPU kernels are no business of CUDA's
          CHECK((top != "simt" || file == kRoot / "cuda/kernel.h"));
          CHECK(target.rfind("ops/cpu/", 0) != 0);
        }
      }
    }
  CHECK(sources("core").size() > 10);
}

TEST_CASE("every op in the sources is in the registry") {
  size_t registrations = 0;
  for (const fs::path& file : sources("ops"))
    if (file.parent_path() == kRoot / "ops" && file.extension() == ".cpp") registrations += count_of(text_of(file), std::regex(R"(\bregister_op\()"));
  CHECK(registrations == sinkgrad::registered_ops().size());
  CHECK(registrations > 0);
}

TEST_CASE("the ops are in order of their names, and each is found by its name") {
  const auto& ops = sinkgrad::registered_ops();
  CHECK(std::is_sorted(ops.begin(), ops.end(), [](auto* a, auto* b) { return std::string(a->name) < b->name; }));
  for (const sinkgrad::OpDef* op : ops) CHECK(&sinkgrad::find_op(op->name) == op);
  CHECK_THROWS_WITH(sinkgrad::find_op("softmacks"), Catch::Contains("did you mean 'softmax'"));
}

TEST_CASE("what a newcomer reads first is under 800 lines") {
  ptrdiff_t lines = 0;
  for (const char* file : {"core/tape.h", "core/op.h", "core/gradcheck.cpp", "ops/softmax.cpp", "ops/cpu/softmax.cpp"}) {
    const std::string text = text_of(kRoot / file);
    lines += std::count(text.begin(), text.end(), '\n');
  }
  CHECK(lines < 800);
}

TEST_CASE("each source file begins with a comment that says what it is, and stays under 500 lines") {
  for (const char* folder : {"core", "ops", "cuda", "nn", "models", "datasets", "tools", "tests"})
    for (const fs::path& file : sources(folder)) {
      const std::string text = text_of(file);
      INFO(fs::relative(file, kRoot).string());
      CHECK(text.rfind("//", 0) == 0);
      CHECK(std::count(text.begin(), text.end(), '\n') < 500);
    }
}

TEST_CASE("docs/reliability.md names the tests that hold each fault, and no others") {
  const std::regex in_document(R"re(([a-z_/]+): `([^`]+)`)re"), in_source(R"re(TEST_CASE\("([^"]*)"\))re");
  std::set<std::pair<std::string, std::string>> listed, found;  // file and name
  std::istringstream document(text_of(kRoot / "docs/reliability.md"));
  int faults = 0;
  for (std::string line; std::getline(document, line);) {
    if (!std::regex_search(line, std::regex(R"(^\| \d+ \|)"))) continue;
    ++faults;
    INFO(line);
    CHECK(std::regex_search(line, in_document));
    for (std::sregex_iterator i(line.begin(), line.end(), in_document), end; i != end; ++i) listed.emplace((*i)[1], (*i)[2]);
  }
  CHECK(faults > 40);
  for (const fs::path& file : sources("tests")) {
    const std::string text = text_of(file), stem = fs::relative(file, kRoot / "tests").replace_extension().generic_string();
    for (std::sregex_iterator i(text.begin(), text.end(), in_source), end; i != end; ++i)
      if (const std::string name = (*i)[1]; listed.contains({stem, name}) || std::regex_search(name, std::regex(R"(\bfault \d)")))
        found.emplace(stem, name);
  }
  for (const auto& [file, name] : listed) CHECK((found.contains({file, name}) ? "" : file + ": " + name + " is listed, there is no such test") == "");
  for (const auto& [file, name] : found) CHECK((listed.contains({file, name}) ? "" : file + ": " + name + " is not listed") == "");
}
