// The op of docs/add_an_op.md: its files, compiled and checked as they stand there, and what the program says about it.
#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "core/gradcheck.h"
#include "example_op/cpu/swiglu.cpp"
#include "example_op/swiglu.cpp"
#include "example_op/swiglu_perceptron.h"
#include "nn/optimizer.h"
#include "program.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const fs::path kRoot = SINKGRAD_SOURCE_DIR;

std::string read(const fs::path& path) { return read_file(path, 1 << 20); }

/// A fenced block of the tutorial.
struct Block {
  std::string language, text;
};

std::vector<Block> blocks() {
  std::istringstream lines(read(kRoot / "docs/add_an_op.md"));
  std::vector<Block> found;
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      if (!inside) found.push_back({line.substr(3), ""});
      inside = !inside;
    } else if (inside) {
      found.back().text += line + "\n";
    }
  }
  return found;
}

/// With every number a #, for measured ones differ in their last digits from processor to processor, and no runs of spaces.
std::string without_numbers(const std::string& text) {
  const std::string marked = std::regex_replace(text, std::regex(R"([-+]?\b\d+(\.\d+)?(e[-+]?\d+)?)"), "#");
  return std::regex_replace(marked, std::regex(" +"), " ");
}

}  // namespace

TEST_CASE("the tutorial's op passes the whole contract") {
  for (const GradcheckReport& r : gradcheck(find_op("swiglu"))) {
    INFO(r.text());
    CHECK(r.passed());
  }
  for (const GradcheckMutant& m : gradcheck_mutants(find_op("swiglu"))) {
    INFO(m.mutant);
    CHECK((m.caught || !m.applicable));
  }
  Tape tape;
  const Tensor gate = Tensor::of<float>({3}, {0, 1, -1000}), x = Tensor::of<float>({3}, {5, 2, 3});
  const auto y = swiglu(tape.leaf(gate), tape.leaf(x)).span<float>();
  CHECK(y[0] == 0);
  CHECK(y[1] == Approx(2 * 0.731059));
  CHECK(y[2] == 0);
}

TEST_CASE("the tutorial's layer learns") {
  Module root;
  const SwigluPerceptron layer(root, "mlp", 4, 16);
  ParameterPack pack(root, DType::f32, 1);
  Optimizer optimizer(pack, {.kind = OptimizerOptions::Kind::adam});
  const Tensor x = Tensor::of<float>({2, 4}, {1, 2, -1, 0, 0, 1, 1, -2}), target = Tensor::of<float>({2, 4}, {0, 1, 0, 1, 1, 0, 1, 0});
  std::vector<float> losses;
  Tape tape;
  for (int step = 0; step < 60; ++step, tape.reset()) {
    pack.zero_gradients();
    const Var loss = mse(layer(tape.leaf(x)), tape.leaf(target));
    losses.push_back(loss.span<float>()[0]);
    tape.backward(loss);
    optimizer.step(0.01);
  }
  CHECK(losses.back() < 0.05f * losses.front());
}

TEST_CASE("the C++ in the tutorial is these files, and each of them") {
  std::set<std::string> files, shown;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests/example_op"))
    if (entry.is_regular_file()) files.insert(read(entry.path()));
  for (const Block& b : blocks())
    if (b.language == "cpp" && b.text.starts_with("//")) shown.insert(b.text);
  CHECK(files == shown);
  CHECK(files.size() == 4);
}

#ifdef SINKGRAD_PROGRAM
TEST_CASE("the commands of the tutorial print what it shows") {
  const auto all = blocks();
  const TemporaryFolder folder;
  int shown = 0;
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    // A command with its output, about the right kernel or about the one with the planted error.
    const std::string program = "build/bin/sinkgrad ";
    if (all[i].language != "sh" || all[i + 1].language != "text" || !all[i].text.starts_with(program)) continue;
    std::string arguments = all[i].text.substr(program.size(), all[i].text.find_first_of("#\n") - program.size());
    const bool planted = all[i].text.find("# with the error") != std::string::npos;
    if (const size_t at = arguments.find("swiglu.svg"); at != std::string::npos) arguments.replace(at, 10, folder / "swiglu.svg");
    const Result r = run(arguments + " --load " + (planted ? SINKGRAD_WRONG_EXAMPLE_OP : SINKGRAD_EXAMPLE_OP));
    INFO(all[i].text << r.out << r.err);
    CHECK(r.code == (planted ? 1 : 0));
    CHECK(without_numbers(r.out) == without_numbers(all[i + 1].text));
    ++shown;
  }
  CHECK(shown >= 4);
}

TEST_CASE("--load takes libraries that register ops, and nothing else") {
  const std::string library = SINKGRAD_EXAMPLE_OP;
  CHECK(run("gradcheck --op swiglu").code == 2);
  const Result listed = run("gradcheck --op swiglu --list --load " + library);
  CHECK(listed.code == 0);
  CHECK_THAT(listed.out, Contains("swiglu") && Contains("5 samples"));
  const Result missing = run("gradcheck --op swiglu --load " + library + "x");
  CHECK(missing.code == 5);
  CHECK_THAT(missing.err, Contains(library + "x: does not exist"));
  const Result text = run("gradcheck --op swiglu --load " + (kRoot / "README.md").string());
  CHECK(text.code == 2);
  CHECK_THAT(text.err, Contains("must be a shared library of ops"));
  // Twice the same ops from different files.
  const Result twice = run(std::string("gradcheck --list --load " SINKGRAD_WRONG_EXAMPLE_OP " --load ") + library);
  CHECK(twice.code == 2);
  CHECK_THAT(twice.err, Contains("swiglu: registered twice"));
}
#endif
