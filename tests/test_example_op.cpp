// The op that the README adds: its two files, compiled and checked as they stand there.
#include <catch2/catch.hpp>
#include <fstream>
#include <sstream>

#include "core/gradcheck.h"
#include "example_op/cpu/softplus.cpp"
#include "example_op/softplus.cpp"

using namespace sinkgrad;

namespace {
std::string read(const std::string& path) {
  std::ifstream in(std::string(SINKGRAD_SOURCE_DIR) + "/" + path);
  REQUIRE(in);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}
}  // namespace

TEST_CASE("the README's op passes the whole contract") {
  for (const GradcheckReport& r : gradcheck(find_op("softplus"))) {
    INFO(r.text());
    CHECK(r.passed());
  }
  for (const GradcheckMutant& m : gradcheck_mutants(find_op("softplus"))) {
    INFO(m.mutant);
    CHECK((m.caught || !m.applicable));
  }
  Tape tape;
  const Tensor x = Tensor::of<float>({2}, {0.0f, 100.0f});
  CHECK(softplus(tape.leaf(x)).span<float>()[0] == Approx(0.693147));
  CHECK(softplus(tape.leaf(x)).span<float>()[1] == 100.0f);
}

TEST_CASE("the README shows these files") {
  const std::string readme = read("README.md");
  CHECK(readme.find(read("tests/example_op/softplus.cpp")) != std::string::npos);
  CHECK(readme.find(read("tests/example_op/cpu/softplus.cpp")) != std::string::npos);
}
