// The text recipes that need no data, trained to the end: what they promise.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/file.h"
#include "datasets/bleu.h"
#include "datasets/text_file.h"
#include "datasets/translation.h"
#include "temporary_folder.h"
#include "tools/ui/metrics.h"

using namespace sinkgrad;
namespace fs = std::filesystem;

namespace {

void run(const std::string& arguments) { REQUIRE(std::system(cat("'", SINKGRAD_PROGRAM, "' ", arguments).c_str()) == 0); }

}  // namespace

TEST_CASE("opinions_small is above 90 %, softmax and Sinkhorn") {
  for (const char* iterations : {"1", "3"}) {
    const TemporaryFolder folder;
    run(cat("train opinions_small -q --set model.iterations=", iterations, " --out ", (folder.path / "run").string()));
    CHECK(read_metrics(folder.path / "run" / "metrics.jsonl").rows.back().value("acc") > 0.9);
  }
}

TEST_CASE("number_words_small is above 90 BLEU on numbers that it translates from standard input") {
  const TemporaryFolder folder;
  const ParallelText test = translation_test("number_words", {});
  std::string source;
  for (const std::string& line : test.source) source += line + "\n";
  write_file(folder.path / "source", source);
  run(cat("train number_words_small -q --out ", (folder.path / "run").string()));
  run(cat("translate ", (folder.path / "run" / "best.safetensors").string(), " <", (folder.path / "source").string(), " >",
          (folder.path / "target").string()));
  std::vector<std::vector<std::string>> references(1);
  for (const std::string& line : test.target) references[0].push_back(join_parts(line));
  CHECK(bleu(read_lines(folder.path / "target"), references, BleuOptions::tokenised(true)).bleu > 90);
}
