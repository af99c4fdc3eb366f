// The figures of the paper from outside: column sums over training, scores over half-steps, and what a study draws.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "program.h"
#include "tiny_text.h"
#include "tools/ui/half_steps.h"
#include "tools/ui/spread.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

json numbers(const fs::path& path) { return json::parse(read_file(path, 1 << 26)); }

constexpr const char* kOpinions = "train opinions_small -q --set data.train=64 --set data.test=30 --set epochs=2 --set optimizer.lr=0.01 ";
constexpr const char* kNumbers =
    R"({"model": {"name": "translator", "dim": 16, "encoder_layers": 2, "decoder_layers": 1, "heads": 2, "mlp_dim": 16, "dropout": 0.1},
      "data": {"name": "number_words", "train": 200, "valid": 20, "test": 20}, "optimizer": {"name": "adam", "lr": 0.01},
      "epochs": 1, "batch_size": 256})";
constexpr const char* kShapes = R"({"model": {"name": "set_transformer", "dim": 16, "heads": 2, "inducing": 4, "dropout": 0},
      "data": {"name": "shapes", "points": 24, "train": 24, "test": 24}, "optimizer": {"name": "adam", "lr": 0.01}, "epochs": 1, "batch_size": 8})";

}  // namespace

TEST_CASE("a spread is median and range") {
  CHECK(Spread({3, 1, 2}).median == 2);
  CHECK(Spread({4, 1, 2, 3}).median == 2.5);
  CHECK(Spread({4, 1, 2, 3}).range() == " (1.00 to 4.00)");
  CHECK(Spread({4}).range().empty());
  CHECK(std::isnan(Spread({}).median));
}

TEST_CASE("columns: sums of real tokens only, over the kept epochs, even once Sinkhorn has converged") {
  const TemporaryFolder folder;
  const std::string out = folder / "run";
  REQUIRE(run(kOpinions + std::string("--keep-epochs 0 1 --out ") + out).code == 0);
  CHECK(fs::exists(fs::path(out) / "epoch0.safetensors"));
  CHECK(fs::exists(fs::path(out) / "epoch1.safetensors"));
  CHECK_FALSE(fs::exists(fs::path(out) / "epoch2.safetensors"));

  REQUIRE(run("columns " + out + " --items 7 --half-steps 1 --out " + (folder / "soft.html")).code == 0);
  REQUIRE(run("columns " + out + " --items 7 --half-steps 61 --out " + (folder / "even.svg")).code == 0);
  const json soft = numbers(folder / "soft.json"), even = numbers(folder / "even.json");
  REQUIRE(soft["moments"].size() == 3);
  for (size_t k = 0; k < 3; ++k) {
    CHECK(soft["moments"][k]["epoch"] == k);
    const json &head = soft["moments"][k]["layers"][0][0]["percentiles"], &converged = even["moments"][k]["layers"][0][0]["percentiles"];
    REQUIRE(head.size() == 101);
    CHECK(std::is_sorted(head.begin(), head.end()));
    CHECK(head.back().get<double>() - head.front().get<double>() > 1e-3);  // softmax leaves columns uneven
    CHECK(converged.front() == Approx(1).margin(1e-4));                    // padding that counted would move these
    CHECK(converged.back() == Approx(1).margin(1e-4));
  }
  CHECK_THAT(read_file(folder / "soft.html", 1 << 26), Contains("Attention 1, head 1") && Contains("epoch 1") && !Contains("<script"));
  CHECK_THAT(read_file(folder / "even.svg", 1 << 26), Catch::Matchers::StartsWith("<svg"));
}

TEST_CASE("columns: padding is neither query nor key") {
  const TemporaryFolder folder;
  tiny::write_reviews(folder.path);
  const auto train = [&](const std::string& batches) {
    REQUIRE(run("train imdb_small -q --max-steps 1 --set data.vocabulary=40 --set data.folder=" + folder.path.string() +
                " --set data.batches=" + batches + " --out " + (folder.path / batches).string())
                .code == 0);
    REQUIRE(run("columns " + (folder.path / batches).string() + " --items 2 --out " + (folder.path / (batches + ".svg")).string()).code == 0);
    return numbers(folder.path / (batches + ".json"))["moments"][0]["layers"];
  };
  // One text at a time needs no padding, but fixed batches are always as long as the longest text may be.
  const json none = train("shuffled"), much = train("fixed");
  REQUIRE(none.size() == much.size());
  CHECK(none[0][0]["columns"] == much[0][0]["columns"]);
  CHECK(much[0][0]["percentiles"][0].get<double>() > 0.1);
}

TEST_CASE("columns: rectangles, translators, and what it refuses") {
  const TemporaryFolder folder;
  write_file(folder / "shapes.json", kShapes);
  write_file(folder / "numbers.json", kNumbers);
  REQUIRE(run("train " + (folder / "shapes.json") + " -q --out " + (folder / "shapes")).code == 0);
  REQUIRE(run("train " + (folder / "numbers.json") + " -q --out " + (folder / "numbers")).code == 0);
  REQUIRE(run("columns " + (folder / "shapes") + " --half-steps 61 --out " + (folder / "shapes.html")).code == 0);
  const json shapes = numbers(folder / "shapes.json");
  for (const json& layer : shapes["moments"][0]["layers"])  // 4 x 24, 24 x 4 and 1 x 24
    for (const json& head : layer) CHECK(head["within_a_tenth"] == 1.0);
  REQUIRE(run("columns " + (folder / "numbers") + " --out " + (folder / "numbers.html")).code == 0);
  CHECK(numbers(folder / "numbers.json")["moments"][0]["layers"].size() == 2);

  const Result name = run("columns " + (folder / "shapes") + " --out columns.png"), none = run("columns " + folder.path.string()),
               many = run("columns " + (folder / "shapes") + " --items 25 --out " + (folder / "x.svg"));
  CHECK(name.code == 2);
  CHECK_THAT(name.err, Contains("ends in .html or .svg, got 'columns.png'"));
  CHECK(none.code == 2);
  CHECK_THAT(none.err, Contains("is no run folder"));
  CHECK(many.code == 2);
  CHECK_THAT(many.err, Contains("--items must be at most 24"));
  CHECK_FALSE(fs::exists(folder / "x.svg"));
  REQUIRE(run("train pct_shapes_small -q --set data.train=32 --set data.test=12 --max-steps 1 --set model.width=8 --out " + (folder / "pct")).code ==
          0);
  CHECK_THAT(run("columns " + (folder / "pct") + " --out " + (folder / "x.svg")).err, Contains("model.double_normalisation=false"));
}

TEST_CASE("half-steps: the same weights at several numbers, and runs over seeds at their own") {
  const TemporaryFolder folder;
  for (const int seed : {1, 2})
    for (const int half_steps : {1, 3}) {
      const std::string name = "l" + std::to_string(half_steps) + "_seed" + std::to_string(seed);
      REQUIRE(run(kOpinions + std::string("--seed ") + std::to_string(seed) + " --set model.iterations=" + std::to_string(half_steps) + " --out " +
                  (folder.path / "runs" / name).string())
                  .code == 0);
    }
  const std::string one = folder / "runs/l3_seed1";
  const Result tried = run("half-steps " + one + " --half-steps 1 3 --out " + (folder / "tried.svg"));
  REQUIRE(tried.code == 0);
  const json scores = numbers(folder / "tried.json")["curves"][0]["scores"];
  REQUIRE(scores.size() == 2);
  const Result own = run("eval " + one + "/last.safetensors");
  char percent[32];
  std::snprintf(percent, sizeof percent, "accuracy %.2f%%", scores[1]["score"].get<double>());
  CHECK_THAT(own.out, Contains(percent));

  const Result trained = run("half-steps " + (folder / "runs") + " --out " + (folder / "trained.html"));
  REQUIRE(trained.code == 0);
  const json curves = numbers(folder / "trained.json")["curves"];
  REQUIRE(curves.size() == 1);  // what differs is the axis and the seed
  CHECK(curves[0]["scores"].size() == 4);
  CHECK_THAT(read_file(folder / "trained.html", 1 << 26), Contains("Median over seeds"));
  const LineChart chart = half_steps_chart({{"a", {{1, {50, 60, 70}}, {21, {80}}}}}, "accuracy");
  CHECK(chart.log_x);
  CHECK(chart.series[0].x == std::vector<double>{1, 21});
  CHECK(chart.series[0].y == std::vector<double>{60, 80});
  CHECK(chart.series[0].low == std::vector<double>{50, 80});
}

TEST_CASE("half-steps: translators are scored by BLEU, apart from classifiers") {
  const TemporaryFolder folder;
  write_file(folder / "numbers.json", kNumbers);
  REQUIRE(run("train " + (folder / "numbers.json") + " -q --out " + (folder / "runs/numbers")).code == 0);
  const Result bleu = run("half-steps " + (folder / "runs") + " --half-steps 1 3 --beam 2 --out " + (folder / "bleu.svg"));
  CHECK(bleu.code == 0);
  CHECK_THAT(bleu.out, Contains("test BLEU"));
  CHECK(numbers(folder / "bleu.json")["measure"] == "BLEU");
  REQUIRE(run(kOpinions + std::string("--out ") + (folder / "runs/opinions")).code == 0);
  const Result mixed = run("half-steps " + (folder / "runs") + " --out " + (folder / "mixed.svg"));
  CHECK(mixed.code == 2);
  CHECK_THAT(mixed.err, Contains("cannot share a figure"));
  CHECK_FALSE(fs::exists(folder / "mixed.svg"));
}

TEST_CASE("study: translators too, and several Sinkformers with their figure") {
  const TemporaryFolder folder;
  write_file(folder / "numbers.json", kNumbers);
  write_file(folder / "shapes.json", kShapes);
  const Result translator = run("study " + (folder / "numbers.json") + " --half-steps 3 --out " + (folder / "numbers"));
  INFO(translator.err);
  CHECK(translator.code == 0);
  CHECK_THAT(read_file(folder / "numbers/study.html", 1 << 26),
             Contains("words, each predicted from those before it") && Contains("3 half-steps: Sinkhorn"));
  const Result several = run("study " + (folder / "shapes.json") + " --half-steps 5 3 --out " + (folder / "shapes"));
  CHECK(several.code == 0);
  CHECK_THAT(several.out, Contains("Sinkformer, l = 3") && Contains("Sinkformer, l = 5") && !Contains("difference"));
  CHECK_THAT(read_file(folder / "shapes/study.html", 1 << 26), Contains("by half-steps"));
  CHECK(run("study " + (folder / "shapes.json") + " --half-steps 3 3 --out " + (folder / "twice")).code == 2);
  CHECK_FALSE(fs::exists(folder / "twice"));
}
