// `sinkgrad inspect` and what it reads: matrices as people write them, heads of an attention layer, the program's answers to wrong use.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <sstream>

#include "core/file.h"
#include "core/npy.h"
#include "core/rng.h"
#include "nn/inspect/attention_head.h"
#include "ops/ops.h"
#include "program.h"
#include "tools/ui/inspection_page.h"
#include "tools/ui/matrix.h"
#include "tools/ui/png.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

Tensor randn(const Shape& shape, uint64_t seed) {
  Tensor t(shape, DType::f64);
  RandomStream random(seed, "test");
  for (double& a : t.span<double>()) a = random.normal();
  return t;
}

struct Parsed {
  Shape shape;
  Numbers values;
  explicit Parsed(const std::string& text) {
    const Tensor t = parse_matrix(text, "scores");
    shape = t.shape();
    values = to_doubles(t.view());
  }
};

/// Runs `sinkgrad inspect` in `folder`.
Result run(const TemporaryFolder& folder, const std::string& arguments, const std::string& input = "/dev/null") {
  return ::run("inspect " + arguments, "cd '" + folder.path.string() + "' &&", input);
}

}  // namespace

TEST_CASE("matrices are read from text, CSV and JSON") {
  for (const char* text : {"1 2 3\n4 5 6", "1,2,3\r\n4,5,6\r\n", "1 2 3; 4 5 6", "# scores\n\n1, 2\t3  # first\n4 5 6\n", "[[1, 2, 3], [4, 5, 6]]",
                           " {\"C\": [[1,2,3],[4,5,6]], \"x\": 0}"}) {
    CAPTURE(text);
    const Parsed p(text);
    CHECK(p.shape == Shape{2, 3});
    CHECK(p.values == Numbers{1, 2, 3, 4, 5, 6});
  }
  CHECK(Parsed("-inf 1e-3").values == Numbers{-HUGE_VAL, 1e-3});
  CHECK(Parsed("[[\"-inf\", 2]]").values == Numbers{-HUGE_VAL, 2});
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "at least one number"},
           {"# nothing\n", "at least one number"},
           {"1 2\n3", "scores, line 2: the row has 1 numbers, the rows before have 2"},
           {"1 2; 3", "line 1"},
           {"a,b\n1,2", "scores, line 1: requires numbers separated by blanks or commas, got 'a'"},
           {"1,,2", "got ''"},
           {"1,2,", "ends in a comma"},
           {"1 2x", "got '2x'"},
           {std::string("1 2\0x", 5), "got '2\\x00x'"},
           {"[[1, 2], [3]]", "row 1: the row has 1 numbers"},
           {"[1, 2]", "row 0: requires an array of numbers, got number"},
           {"[[1, \"x\"]]", "numbers or \"-inf\", got \"x\""},
           {"[[1, 2]", "must be JSON"},
           {std::string(100'000, '['), "at most 64 deep"},
           {"[[1, \"" + std::string(1 << 20, 'x'), "scores: must be JSON: line 1, column 1048583: invalid string: missing closing quote"},
           {"{\"D\": 1}", "under \"C\""},
           {"{\"C\": 1}", "requires an array of rows, got number"},
           {"[]", "at least one number"},
           {"[[]]", "at least one number"},
       }) {
    CAPTURE(text);
    CHECK_THROWS_WITH(parse_matrix(text, "scores"), Contains(message));
    CHECK_THROWS_AS(parse_matrix(text, "scores"), InputError);
  }
}

TEST_CASE("a head's scores and cotangent give back the gradient that its queries got") {
  const int64_t batch = 2, n = 4, m = 5, heads = 2, width = 3;
  for (int variant = 0; variant < 4; ++variant) {
    CAPTURE(variant);
    AttentionHeads attention{.count = heads, .scale = 0.7, .sinkhorn = {.iterations = variant == 3 ? 1 : 5}};
    attention.sinkhorn.rows_sum_to_inverse_count = variant == 1;
    Tape tape(DType::f64);
    const Tensor qt = randn({batch, n, heads * width}, 1), kt = randn({batch, m, heads * width}, 2), vt = randn({batch, m, heads * 4}, 3),
                 w = randn({batch, n, heads * 4}, 4);
    const Tensor keys = Tensor::of<int32_t>({batch, m}, {0, 0, 0, 0, 0, 0, 1, 0, 0, 1}),
                 queries = Tensor::of<int32_t>({batch, n}, {0, 0, 0, 0, 1, 0, 0, 0}),
                 pairs = Tensor::of<int32_t>({n, m}, {0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1});
    AttentionMasks masks;
    if (variant == 1 || variant == 2) masks = {.key_is_padding = tape.leaf(keys), .query_is_padding = tape.leaf(queries)};
    if (variant == 3) masks.pair_is_hidden = tape.leaf(pairs);
    const Var q = tape.variable(qt), out = attention(q, tape.leaf(kt), tape.leaf(vt), masks);
    tape.retain_grad(out);
    tape.backward(out, w);
    const Numbers expected = to_doubles(tape.grad(q));
    for (int64_t item = 0; item < batch; ++item)
      for (int64_t head = 0; head < heads; ++head) {
        const HeadScores h = head_scores(attention, item, head);
        const Inspection inspected = inspect(h.scores, h.options);
        CHECK(inspected.half_steps == attention.sinkhorn.iterations);
        CHECK(inspected.contributions_difference < 1e-12);
        for (int64_t i = 0; i < n; ++i)
          for (int64_t d = 0; d < width; ++d) {
            double sum = 0;
            for (int64_t j = 0; j < m; ++j)
              sum += attention.scale * inspected.gradient[static_cast<size_t>(i * m + j)] *
                     kt.span<double>()[static_cast<size_t>((item * m + j) * heads * width + head * width + d)];
            CHECK(sum == Approx(expected[static_cast<size_t>((item * n + i) * heads * width + head * width + d)]).margin(1e-12));
          }
      }
    CHECK_THROWS_WITH(head_scores(attention, batch, 0), Contains("item must lie in 0..1, got 2"));
    CHECK_THROWS_WITH(head_scores(attention, 0, heads), Contains("head must lie in 0..1, got 2"));
  }
  AttentionHeads uncalled;
  CHECK_THROWS_WITH(head_scores(uncalled, 0, 0), Contains("has not been called"));
  Tape tape(DType::f64);
  uncalled(tape.variable(randn({1, 2, 3}, 1)), tape.leaf(randn({1, 2, 3}, 2)), tape.leaf(randn({1, 2, 3}, 3)));
  CHECK_THROWS_WITH(head_scores(uncalled, 0, 0), Contains("a backward is required"));
}

TEST_CASE("the page says what it shows, whatever the matrix") {
  const double inf = HUGE_VAL;
  for (const auto& [scores, half_steps] : std::vector<std::pair<Tensor, int>>{{randn({1, 1}, 1), 1},
                                                                              {randn({1, 6}, 2), 3},
                                                                              {randn({6, 1}, 3), 2},
                                                                              {Tensor({3, 3}, DType::f64), 5},
                                                                              {Tensor::of<double>({2, 3}, {1, -inf, 2, -inf, -inf, 4e5}), 3},
                                                                              {randn({70, 80}, 4), 1}}) {
    CAPTURE(scores.shape(), half_steps);
    const Inspection i = inspect(scores, {.half_steps = half_steps});
    const InspectionSource source{.title = "<scores> & more", .details = "\"quoted\""};
    const std::string page = inspection_page(i, source, "subtitle");
    CHECK_THAT(page, Contains("&lt;scores&gt; &amp; more") && Contains("&quot;quoted&quot;") && !Contains("=\"nan") && !Contains("=\"inf") &&
                         !Contains("NaN"));
    CHECK_THAT(page, !Contains("<strong>failed:"));
    for (const std::string& warning : i.warnings) CHECK_THAT(page, Contains(warning.substr(0, 20)));
    const std::string json = inspection_json(i, source).dump();
    CHECK_THAT(json, Contains("\"schema\":1") && !Contains("null"));
    CHECK_THAT(inspection_text(i, source), Contains("<scores> & more, " + std::to_string(half_steps) + " half-step"));
  }
}

TEST_CASE("the program inspects random, written, piped and stored matrices") {
  const TemporaryFolder folder;
  const Result random = run(folder, "--size 3 4 --half-steps 3 --spread 4 --seed 7");
  CHECK(random.code == 0);
  CHECK(random.err.empty());
  CHECK_THAT(random.out, Contains("columns still off by ") && Contains(": scores too sharp for 3 half-steps") &&
                             Contains("written: inspect.html, inspect.json, inspect.npz"));
  for (const char* file : {"inspect.html", "inspect.json", "inspect.npz"}) CHECK(std::filesystem::exists(folder.path / file));

  write_file(folder / "c.csv", "1,2\n3,5\n");
  write_file(folder / "w.json", "[[1, 0], [0, 2]]");
  write_file(folder / "c.npy", npy_bytes(Tensor::of<double>({2, 2}, {1, 2, 3, 5})));
  std::vector<nlohmann::json> contents;
  for (const auto& [arguments, input] : std::vector<std::pair<std::string, std::string>>{
           {"c.csv", "/dev/null"}, {"c.npy", "/dev/null"}, {"-", "c.csv"}, {"--matrix '1 2; 3 5'", "/dev/null"}}) {
    CAPTURE(arguments);
    const Result result = run(folder, arguments + " --cotangent w.json --out x", input);
    CHECK(result.err.empty());
    REQUIRE(result.code == 0);
    contents.push_back(nlohmann::json::parse(read_file(folder / "x.json", 1 << 20)));
    contents.back().erase("source");
    CHECK(contents.back() == contents.front());
  }
  CHECK(contents[0]["C"] == nlohmann::json::parse("[[1.0,2.0],[3.0,5.0]]"));
  CHECK(contents[0]["W"] == nlohmann::json::parse("[[1.0,0.0],[0.0,2.0]]"));
  CHECK(contents[0]["half_steps"] == 5);
}

TEST_CASE("the program inspects a head of a checkpoint on a chosen item") {
  const TemporaryFolder folder;
  write_file(folder / "tiny.json", R"({"model": {"name": "set_transformer", "dim": 16, "heads": 2, "inducing": 4, "iterations": 3},
    "data": {"name": "shapes", "points": 12, "train": 24, "test": 24}, "epochs": 1, "batch_size": 8})");
  REQUIRE(::run("train tiny.json --out run -q", "cd '" + folder.path.string() + "' &&").code == 0);
  const Result result = run(folder, "run/last.safetensors --layer 1 --head 1 --item 5 --out head");
  CHECK(result.err.empty());
  REQUIRE(result.code == 0);
  CHECK_THAT(result.out, Contains("Layer 1, head 1 of run/last.safetensors, test item 5, 3 half-steps"));
  const auto content = nlohmann::json::parse(read_file(folder / "head.json", 1 << 22));
  CHECK(content["source"]["kind"] == "attention");
  CHECK(content["C"].size() == 12);
  CHECK(content["C"][0].size() == 4);
  CHECK_THAT(read_file(folder / "head.html", 1 << 22), Contains("the model says"));
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{{"--layer 9", "--layer must lie in 0..4, got 9"},
                                                                                           {"--head 2", "--head must lie in 0..1, got 2"},
                                                                                           {"--item 24", "--item must lie in 0..23"}}) {
    const Result wrong = run(folder, "run/last.safetensors " + arguments);
    CHECK(wrong.code == 2);
    CHECK_THAT(wrong.err, Contains(message));
  }
}

TEST_CASE("wrong use is told in a sentence and writes nothing") {
  const TemporaryFolder folder;
  write_file(folder / "c.txt", "1 2\n3\n");
  write_file(folder / "noise.npy", "noise");
  write_file(folder / "vector.npy", npy_bytes(Tensor({3}, DType::f64)));
  for (const auto& [arguments, code, message] : std::vector<std::tuple<std::string, int, std::string>>{
           {"", 2, "requires one of a file, --matrix and --size, got none"},
           {"c.txt --size 3", 2, "excludes"},
           {"c.txt", 2, "c.txt, line 2"},
           {"vector.npy", 2, "vector.npy: requires a matrix, got shape (3)"},
           {"absent.txt", 5, "absent.txt"},
           {"--size 3 --out no/x", 5, "no: the folder of --out does not exist"},
           {"--size 3 --half-steps 0", 2, "--half-steps"},
           {"--size 3 --mask-rows 3", 2, "masked query must lie in 0..2, got 3"},
           {"--size 2 --cotangent c.txt", 2, "c.txt, line 2"},
           {"--matrix '1 nan'", 2, "scores must lie within +-1e+300, or be -inf to exclude an entry, got nan at row 0, column 1"},
           {"--size 3 --spread 1e305", 2, "scores must lie within"},
           {"--size 3 --out ''", 2, "--out must name the files to write, got ''"},
           {"--size 3 --out ./", 2, "--out must name the files to write, got './'"},
           {".", 2, ".: is a folder; requires a file of scores or a checkpoint"},
           {"noise.npy", 2, "noise.npy: is no .npy file"},
           {"--size 5000 5000", 2, "at most 4194304 scores"},
           {"--size 3 --half-steps 3000000000", 2, "must be at most 2147483647, got 3000000000"},
           {"--size 3 --seed 18446744073709551617", 2, "must be at most 9007199254740992, got 18446744073709551617"},
           {"--size 3 --head 1", 2, "--layer, --head and --item require a checkpoint NAME.safetensors, got scores"},
           {"c.txt --item 0", 2, "require a checkpoint NAME.safetensors, got c.txt"},
           {"c.txt --spread 2", 2, "--spread"},
       }) {
    CAPTURE(arguments);
    const Result result = run(folder, arguments);
    CHECK(result.code == code);
    CHECK_THAT(result.err, Contains(message));
    CHECK(result.out.empty());
  }
  CHECK_FALSE(std::filesystem::exists(folder.path / "inspect.html"));
}

TEST_CASE("pictures are PNG data addresses of exactly the pixels") {
  const std::vector<uint8_t> red = {255, 0, 0, 255};
  // The bytes that Python's zlib and struct give for a red pixel.
  CHECK(png_address(1, 1, red) ==
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP4z8DwHwAFAAH/VscvDQAAAABJRU5ErkJggg==");
  CHECK_THROWS_WITH(png_address(2, 1, red), Contains("4 bytes for each of 2 x 1 pixels, got 4"));
}
