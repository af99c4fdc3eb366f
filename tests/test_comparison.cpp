// Two inspections side by side: the changes are those of the numbers, and the program compares half-steps, matrices and checkpoints.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/rng.h"
#include "nn/inspect/difference.h"
#include "program.h"
#include "tools/ui/comparison_page.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

Tensor randn(const Shape& shape, uint64_t seed, double scale = 1) {
  Tensor t(shape, DType::f64);
  RandomStream random(seed, "test");
  for (double& a : t.span<double>()) a = scale * random.normal();
  return t;
}

Result run(const TemporaryFolder& folder, const std::string& arguments) {
  return ::run("inspect " + arguments, "cd '" + folder.path.string() + "' &&");
}

json numbers(const TemporaryFolder& folder, const char* name) { return json::parse(read_file(folder / name, 1 << 24)); }

}  // namespace

TEST_CASE("a difference is second minus first, in plan, sums, entropies and gradient") {
  const Tensor scores = Tensor::of<double>({2, 2}, {0, std::log(3.0), std::log(3.0), 0});  // softmax: 1/4 and 3/4, doubly stochastic already
  const Inspection flat = inspect(Tensor({2, 2}, DType::f64), {.half_steps = 1}), sharp = inspect(scores, {.half_steps = 1});
  const InspectionDifference d = difference(flat, sharp);
  for (size_t k = 0; k < 4; ++k) CHECK(d.plan[k] == Approx(k == 0 || k == 3 ? -0.25 : 0.25));
  CHECK(d.moved == Approx(0.25));
  CHECK(largest(d.row_sums) < 1e-15);
  CHECK(largest(d.column_sums) < 1e-15);
  const double entropy = -0.25 * std::log(0.25) - 0.75 * std::log(0.75);
  for (double change : d.row_entropies) CHECK(change == Approx(entropy - std::log(2.0)));
  CHECK(d.plan_cosine == Approx(1 / std::sqrt(1.25)));  // (1, 1) and (1, 3) of each row
  for (size_t k = 0; k < 4; ++k) CHECK(d.gradient[k] == sharp.gradient[k] - flat.gradient[k]);
  CHECK(d.gradient_change == Approx(norm(d.gradient) / norm(flat.gradient)));

  const Inspection one = inspect(randn({4, 6}, 1), {.half_steps = 1}), nine = inspect(randn({4, 6}, 1), {.half_steps = 9});
  const InspectionDifference grown = difference(one, nine);
  CHECK(largest(grown.row_sums) < 1e-14);
  for (size_t j = 0; j < 6; ++j) CHECK(grown.column_sums[j] == Approx(nine.last().column_sums[j] - one.last().column_sums[j]));
  const InspectionDifference none = difference(nine, nine), back = difference(nine, one);
  CHECK(none.moved == 0);
  CHECK(none.gradient_change == 0);
  CHECK(none.gradient_cosine == Approx(1));
  CHECK(back.moved == grown.moved);
  CHECK(back.plan[3] == -grown.plan[3]);
}

TEST_CASE("differences of excluded rows, of vanishing gradients, and of other shapes") {
  const Inspection all = inspect(randn({3, 4}, 2), {}), part = inspect(randn({3, 4}, 2), {.masked_queries = {1}});
  const InspectionDifference d = difference(all, part);
  CHECK(d.row_sums[1] == Approx(-1));
  CHECK(d.moved < 0.5);  // the row that is missing from one of them moves nothing
  CHECK(row_entropies(part.last().plan, 3, 4)[1] == 0);
  const Inspection still = inspect(randn({3, 4}, 2), {.cotangent = Tensor({3, 4}, DType::f64)}), other = inspect(randn({2, 1}, 3), {});
  CHECK(difference(still, still).gradient_change == 0);
  CHECK(difference(still, all).gradient_change == std::numeric_limits<double>::infinity());
  CHECK_THROWS_WITH(difference(all, other), Contains("of one shape, got (3,4) and (2,1)"));
  CHECK_THROWS_AS(difference(all, other), ShapeError);
}

TEST_CASE("inspect --against a number: the same scores and cotangent after other half-steps, as each would be inspected alone") {
  const TemporaryFolder folder;
  const Result both = run(folder, "--size 4 6 --spread 2 -l 1 --against 5 --out both");
  CHECK(both.err.empty());
  REQUIRE(both.code == 0);
  CHECK_THAT(both.out, Contains("A  Random scores, 4 x 6") && Contains(", 1 half-step\n") && Contains(", 5 half-steps\n") &&
                           Contains("columns off by") && Contains("a row moves ") && Contains("written: both.html, both.json, both.npz"));
  REQUIRE(run(folder, "--size 4 6 --spread 2 -l 1 --out one").code == 0);
  REQUIRE(run(folder, "--size 4 6 --spread 2 -l 5 --out five").code == 0);
  const json content = numbers(folder, "both.json");
  CHECK(content["a"] == numbers(folder, "one.json"));
  CHECK(content["b"] == numbers(folder, "five.json"));
  double moved = 0;
  for (size_t i = 0; i < 4; ++i)
    for (size_t j = 0; j < 6; ++j) {
      const double change = content["b"]["P"][4][i][j].get<double>() - content["a"]["P"][0][i][j].get<double>();
      CHECK(content["change"]["P"][i][j] == change);
      CHECK(content["change"]["dC"][i][j] == content["b"]["dC"][i][j].get<double>() - content["a"]["dC"][i][j].get<double>());
      moved += std::abs(change) / 8;
    }
  CHECK(content["change"]["moved"].get<double>() == Approx(moved));
  CHECK(content["change"]["col_sum"].size() == 6);
  CHECK(content["change"]["row_sum"].size() == 4);
  CHECK(content["change"]["row_entropy"].size() == 4);
  CHECK(content["numbers"][0] == json{{"name", "half-steps"}, {"a", 1.0}, {"b", 5.0}});
  const std::string arrays = read_file(folder / "both.npz", 1 << 24);
  for (const char* name : {"change_P.npy", "change_row_entropy.npy", "a_P.npy", "b_dC_step.npy"}) CHECK_THAT(arrays, Contains(name));
  const std::string page = read_file(folder / "both.html", 1 << 24);
  CHECK_THAT(page, Contains("P of A") && Contains("dL/dC: B \u2212 A") && Contains("<td class=\"number\">5</td>") && !Contains("What comes in"));
}

TEST_CASE("inspect --against a file: other scores, and two checkpoints on the same item and head") {
  const TemporaryFolder folder;
  write_file(folder / "a.txt", "1 2 3; 4 5 6");
  write_file(folder / "b.txt", "1 2 3; 6 5 -inf");
  const Result files = run(folder, "a.txt --against b.txt -l 3");
  REQUIRE(files.code == 0);
  CHECK_THAT(files.out, Contains("A  Scores from a.txt") && Contains("B  Scores from b.txt"));
  CHECK(numbers(folder, "inspect.json")["b"]["C"][1][2] == "-inf");
  CHECK_THAT(read_file(folder / "inspect.html", 1 << 24), Contains("What comes in"));

  write_file(folder / "tiny.json", R"({"model": {"name": "set_transformer", "dim": 16, "heads": 2, "inducing": 4},
    "data": {"name": "shapes", "points": 12, "train": 24, "test": 24}, "epochs": 1, "batch_size": 8})");
  for (const char* setting :
       {"--set model.iterations=1 --out one", "--set model.iterations=5 --out five", "--set data.points=12 --set data.seed=9 --out other"})
    REQUIRE(::run(cat("train tiny.json -q ", setting), "cd '" + folder.path.string() + "' &&").code == 0);
  const Result heads = run(folder, "one/last.safetensors --layer 1 --head 1 --item 5 --against five/last.safetensors");
  CHECK(heads.err.empty());
  REQUIRE(heads.code == 0);
  CHECK_THAT(heads.out, Contains("A  Layer 1, head 1 of one/last.safetensors, test item 5, 1 half-step\n") &&
                            Contains("B  Layer 1, head 1 of five/last.safetensors, test item 5, 5 half-steps\n") && !Contains("note"));
  const json content = numbers(folder, "inspect.json");
  CHECK(content["a"]["half_steps"] == 1);
  CHECK(content["b"]["half_steps"] == 5);
  CHECK(content["a"]["C"] != content["b"]["C"]);
  CHECK(content["a"]["W"] != content["b"]["W"]);
  const Result other = run(folder, "one/last.safetensors --against other/last.safetensors");
  CHECK_THAT(other.out, Contains("note  the two models do not see the same item"));
}

TEST_CASE("inspect --against refuses what cannot be compared, in a sentence, and writes nothing") {
  const TemporaryFolder folder;
  write_file(folder / "c.txt", "1 2\n3 4\n");
  for (const auto& [arguments, code, message] :
       std::vector<std::tuple<std::string, int, std::string>>{{"--size 2 3 --against c.txt", 2, "must have scores of one shape, got (2,3) and (2,2)"},
                                                              {"--size 2 --against 0", 2, "half-steps for scores (2,2), got 0"},
                                                              {"--size 2 --against absent.txt", 5, "absent.txt"},
                                                              {"--size 2 --against absent.safetensors", 5, "absent.safetensors"},
                                                              {"--size 2 --against ''", 2, "--against: must be a number of half-steps or a file"}}) {
    CAPTURE(arguments);
    const Result result = run(folder, arguments);
    CHECK(result.code == code);
    CHECK_THAT(result.err, Contains(message));
    CHECK(result.out.empty());
  }
  CHECK_FALSE(std::filesystem::exists(folder.path / "inspect.html"));
}
