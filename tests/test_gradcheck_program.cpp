// `sinkgrad gradcheck` from outside: reports as JSON, running them again, exit codes, the curve as a file.
#include <nlohmann/json.hpp>

#include "program.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using nlohmann::json;

#ifdef SINKGRAD_PROGRAM
namespace {

Result gradcheck(const std::string& arguments) { return run("gradcheck " + arguments); }
const std::string kWrong = std::string(" --load ") + SINKGRAD_WRONG_EXAMPLE_OP;

json without_time(const std::string& text) {
  json report = json::parse(text);
  CHECK(report["seconds"].get<double>() > 0);
  report.erase("seconds");
  return report;
}

}  // namespace

TEST_CASE("fault 41: a report as JSON holds everything, and runs again") {
  const TemporaryFolder folder;
  const std::string file = folder / "report.json";
  auto replay = [&](const std::string& content, const std::string& more = "") {
    write_file(file, content);
    return gradcheck("--json --replay " + file + more);
  };
  const Result first = gradcheck("--op softmax --sample 1 --seed 5 --json");
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  json report = without_time(first.out);
  CHECK(report["tool"] == "sinkgrad gradcheck");
  CHECK(report["op"] == "softmax");
  CHECK(report["sample"] == 1);
  CHECK(report["seed"] == 5);
  CHECK(report["device"] == "cpu");
  CHECK(report["threads"].get<int>() > 0);
  CHECK(report["version"].is_string());
  CHECK(report["attrs"] == json({{"axis", 1.0}}));
  CHECK(report["inputs"] ==
        json::parse(R"([{"name": "x0", "dtype": "f64", "shape": [2, 3, 5], "strides": [15, 5, 1], "offset": 0, "requires_grad": true}])"));
  CHECK(report["method"] == "full Jacobian 30 x 30");
  CHECK(report["step"] == 2e-4);
  CHECK(report["tol"]["rtol"] == 2e-7);
  CHECK(report["verdict"] == "PASS");
  const json& pair = report["pairs"].at(0);
  CHECK(pair["input"] == 0);
  CHECK(pair["bad"] == 0);
  CHECK(pair["total"] == 900);
  CHECK(pair["top"].size() == 5);
  for (const char* key : {"index_out", "index_in", "analytic", "numeric", "error_bar", "abs", "rel"}) CHECK(pair["worst"].contains(key));
  CHECK(pair["worst"]["index_in"].size() == 3);
  CHECK(report["checks"]["linear"]["ok"] == true);
  CHECK(without_time(replay(first.out).out) == report);

  const Result other = gradcheck("--op softmax --sample 1 --seed 6 --budget 10 --json");
  const json projected = without_time(other.out);
  CHECK(projected["budget"] == 10);
  CHECK(projected["pairs"][0]["total"] == 18);
  CHECK(without_time(replay(other.out).out) == projected);

  report["tol"]["rtol"] = 1e-18;  // no difference is so certain
  const Result narrow = replay(report.dump());
  CHECK(narrow.code == 0);
  CHECK(json::parse(narrow.out)["verdict"] == "UNVERIFIABLE");
  CHECK(json::parse(narrow.out)["pairs"][0]["unverifiable"].get<int>() > 0);
  CHECK(replay(report.dump(), " --strict").code == 1);

  report["inputs"][0]["shape"] = {9, 9};
  json negative = report, elsewhere = report;
  negative["sample"] = -1;
  elsewhere["sample"] = 99;
  for (const std::string& bad : {report.dump(), negative.dump(), std::string("not json"), std::string("{\"op\": \"softmax\"}"), std::string("[]")}) {
    const Result r = replay(bad);
    INFO(bad << " -> " << r.err);
    CHECK(r.code == 2);
    CHECK_THAT(r.err, Contains(file));
  }
  CHECK(replay(elsewhere.dump()).code == 2);
  CHECK(gradcheck("--replay " + file + "x").code == 5);
}

TEST_CASE("an op that is wrong exits with 1, in text, as JSON, in the table and replayed") {
  const TemporaryFolder folder;
  for (const char* how : {"--op swiglu", "--op swiglu --sample 0", "--op swiglu --json", ""}) {
    const Result r = gradcheck(how + kWrong);
    INFO(how << "\n" << r.out << r.err);
    CHECK(r.code == 1);
    CHECK_THAT(r.out, Contains("FAIL"));
  }
  const Result table = gradcheck(kWrong);
  CHECK_THAT(table.out, Contains("tanh                     PASS") && Contains("swiglu                   FAIL") && Contains("swiglu  x0:f64(3,4)"));
  const Result report = gradcheck("--op swiglu --sample 0 --json" + kWrong);
  write_file(folder / "report.json", report.out);
  const Result again = gradcheck("--replay " + (folder / "report.json") + kWrong);
  CHECK(again.code == 1);
  CHECK_THAT(again.out, Contains("FAIL  input 0") && Contains("dx0["));
  CHECK(gradcheck("--replay " + (folder / "report.json")).code == 2);  // there is no such op without the library
}

TEST_CASE("the curve is a file, and its verdict an exit code") {
  const TemporaryFolder folder;
  const std::string file = folder / "curve.svg";
  const Result right = gradcheck("--op tanh --sample 0 --curve " + file);
  CHECK(right.code == 0);
  CHECK_THAT(right.out, Contains("PASS"));
  CHECK_THAT(read_file(file, 1 << 20), Catch::Matchers::StartsWith("<svg") && Contains("tanh, sample 0"));
  CHECK(gradcheck("--op swiglu --sample 0 --curve " + file + kWrong).code == 1);
  CHECK_THAT(read_file(file, 1 << 20), Contains("Verdict FAIL"));
  CHECK(gradcheck("--op tanh --sample 0 --curve " + (folder / "curve.png")).code == 2);
  CHECK(gradcheck("--op tanh --curve " + file).code == 2);
  CHECK(gradcheck("--op tanh --op exp --sample 0 --curve " + file).code == 2);
  CHECK(gradcheck("--op softmax --sample 99 --curve " + file).code == 2);
  CHECK(gradcheck("--op tanh --sample 0 --curve " + (folder / "none/curve.svg")).code == 5);
}

TEST_CASE("gradcheck: usage errors, the self-test, and what is listed") {
  CHECK(gradcheck("--op softmacks").code == 2);
  CHECK(gradcheck("--op softmax --sample 99").code == 2);
  CHECK(gradcheck("--op softmax --budget -1").code == 2);
  const Result mutants = gradcheck("--op add --self-test");
  CHECK(mutants.code == 0);
  CHECK_THAT(mutants.out, Contains("mutants killed") && !Contains("SURVIVES"));
  CHECK_THAT(gradcheck("--op softmax --list").out, Contains("softmax") && Contains("samples, reference"));
}
#endif
