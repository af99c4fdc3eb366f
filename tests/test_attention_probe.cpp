// Watching attention during training: the numbers against plans computed by hand, masks, and that training does not notice.
#include <catch2/catch.hpp>
#include <cmath>

#include "datasets/shapes.h"
#include "models/registry.h"
#include "nn/attention_probe.h"
#include "nn/trainer.h"
#include "temporary_folder.h"
#include "tools/ui/attention_curves.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

Tensor sequence(const Shape& shape, double scale) {
  Tensor x(shape, DType::f64);
  for (size_t i = 0; i < x.span<double>().size(); ++i) x.span<double>()[i] = scale * std::sin(1.7 * static_cast<double>(i) + 0.3);
  return x;
}

const SyntheticShapes g_shapes("test", 12, {.points = 16});

std::unique_ptr<Model> set_model(int iterations) {
  return make_model({{"name", "set_transformer"}, {"dim", 16}, {"heads", 2}, {"inducing", 4}, {"dropout", 0.3}, {"iterations", iterations}}, {16, 3},
                    g_shapes.classes());
}

}  // namespace

TEST_CASE("statistics are those of the plan: softmax, Sinkhorn, even counts and the released scaling") {
  const Tensor q = sequence({2, 3, 8}, 1.5), k = sequence({2, 5, 8}, 1.1), v = sequence({2, 5, 8}, 1);
  for (const SinkhornOptions& options : {SinkhornOptions{.iterations = 1}, SinkhornOptions{.iterations = 3}, SinkhornOptions{.iterations = 2},
                                         SinkhornOptions{.iterations = 3, .rows_sum_to_inverse_count = true}}) {
    Tape tape(DType::f64);
    AttentionHeads attention{.count = 2, .scale = 0.7, .sinkhorn = options};
    attention.sinkhorn.expose_plan = true;
    attention(tape.leaf(q), tape.leaf(k), tape.leaf(v));
    const std::vector<AttentionStatistics> statistics = attention_statistics(attention);
    const std::vector<double> plan = to_doubles(attention.plan());  // (2, 2, 3, 5)
    const double rows = options.rows_sum_to_inverse_count ? 3 : 1;
    REQUIRE(statistics.size() == 2);
    double worst = 0;
    for (size_t h = 0; h < 2; ++h) {
      double least = 1, greatest = 1, entropy = 0;
      for (size_t b = 0; b < 2; ++b) {
        for (size_t j = 0; j < 5; ++j) {
          double sum = 0;
          for (size_t i = 0; i < 3; ++i) {
            const double p = rows * plan[((b * 2 + h) * 3 + i) * 5 + j];
            sum += p * 5 / 3;
            entropy -= p * std::log(p) / std::log(5) / 6;
          }
          least = std::min(least, sum);
          greatest = std::max(greatest, sum);
        }
      }
      CHECK(statistics[h].column_min == Approx(least));
      CHECK(statistics[h].column_max == Approx(greatest));
      CHECK(statistics[h].entropy == Approx(entropy));
      worst = std::max(worst, statistics[h].marginal_error);
    }
    CHECK(worst == Approx(attention.report().marginal_error));
    CHECK(worst > 1e-3);
  }
}

TEST_CASE("excluded queries and keys count nowhere") {
  const Tensor q = sequence({1, 4, 4}, 1.5), k = sequence({1, 5, 4}, 1.1), v = sequence({1, 5, 4}, 1);
  const Tensor keys = Tensor::of<int32_t>({1, 5}, {0, 0, 0, 1, 1}), queries = Tensor::of<int32_t>({1, 4}, {0, 0, 0, 1});
  const auto statistics = [&](const Tensor& q_used, const Tensor& k_used, const Tensor& v_used, bool masked) {
    Tape tape(DType::f64);
    AttentionHeads attention{.count = 1, .sinkhorn = {.iterations = 3, .expose_plan = true}};
    AttentionMasks masks;
    if (masked) masks = {.key_is_padding = tape.leaf(keys), .query_is_padding = tape.leaf(queries)};
    attention(tape.leaf(q_used), tape.leaf(k_used), tape.leaf(v_used), masks);
    return attention_statistics(attention)[0];
  };
  const AttentionStatistics padded = statistics(q, k, v, true);
  const AttentionStatistics alone = statistics(q.first({1, 3, 4}), k.first({1, 3, 4}), v.first({1, 3, 4}), false);
  CHECK(padded.column_min == Approx(alone.column_min));
  CHECK(padded.column_max == Approx(alone.column_max));
  CHECK(padded.marginal_error == Approx(alone.marginal_error));
  CHECK(padded.entropy == Approx(alone.entropy));
  CHECK(alone.column_min > 0);
}

TEST_CASE("a probe sees every layer and head; pooling by one query is uniform after a column step") {
  const auto model = set_model(3);
  const ParameterPack pack(*model, DType::f32, 1);
  AttentionProbe probe(*model, g_shapes, Device::cpu());
  const auto layers = probe.measure();
  REQUIRE(layers.size() == model->attentions().size());
  for (const auto& heads : layers) {
    REQUIRE(heads.size() == 2);
    for (const AttentionStatistics& head : heads) {
      CHECK(head.column_min <= 1);
      CHECK(head.column_max >= 1);
      CHECK((head.entropy > 0 && head.entropy <= 1 + 1e-6));
    }
  }
  CHECK(layers.back()[0].entropy == Approx(1));
  CHECK(layers.back()[1].marginal_error < 1e-5);
  CHECK_FALSE(model->attentions().front()->sinkhorn.expose_plan);
  // One item at a time, whatever their number.
  AttentionProbe one(*model, g_shapes, Device::cpu(), Precision::full, 1);
  CHECK(one.measure()[0][0].column_max <= layers[0][0].column_max);
}

TEST_CASE("training is the same to the bit whether the attention is watched or not") {
  const SyntheticShapes train("train", 24, {.points = 16, .augment = true});
  std::vector<double> losses[2];
  for (const bool watched : {false, true}) {
    const auto model = set_model(3);
    Trainer trainer(*model, train, {.epochs = 2, .batch_size = 8, .seed = 4});
    AttentionProbe probe(*model, g_shapes, Device::cpu());
    while (!trainer.finished()) {
      if (watched) probe.measure();
      losses[watched].push_back(trainer.step().loss);
      if (trainer.epoch_complete()) trainer.end_epoch(0);
    }
    losses[watched].push_back(model->parameters().front().value.as<float>()[0]);
  }
  CHECK(losses[0] == losses[1]);
  CHECK(losses[0].size() == 7);
}

TEST_CASE("the charts: one curve per head of one run, one per group of several, and a sentence when nothing was watched") {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, int iterations, int seed, double error) {
    std::filesystem::create_directory(folder.path / name);
    MetricsWriter writer = MetricsWriter::create(folder.path / name / "metrics.jsonl",
                                                 {{"config", {{"name", "vit"}, {"seed", seed}, {"model", {{"iterations", iterations}}}}}});
    writer.write({.step = 1, .epoch = 1, .split = "test", .values = {{"loss", 1}}});
    for (int step : {0, 10}) {
      MetricsRow row{.step = step, .epoch = step / 10.0, .split = "attention"};
      for (int head : {0, 1})
        for (const auto& [quantity, value] :
             {std::pair("column_min", 0.5), std::pair("column_max", 2.0), std::pair("marginal_error", error + head), std::pair("entropy", 0.9)})
          row.values.emplace_back("attention.3." + std::to_string(head) + "." + quantity, value);
      if (error > 0) writer.write(row);
    }
  };
  write("a1", 1, 1, 0.1);
  write("a2", 1, 2, 0.3);
  write("b1", 5, 1, 0.2);
  const auto charts = [&](const std::vector<std::string>& names) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(folder.path / name);
    const std::vector<Run> runs = load_runs(paths);
    return attention_charts(group_runs(runs, true), CurveAxis::epoch);
  };
  const auto one = charts({"b1"});
  REQUIRE(one.size() == 1);
  CHECK(one[0].layer == 3);
  REQUIRE(one[0].charts.size() == 3);
  CHECK_THAT(one[0].charts[1], Contains("Layer 3: marginal error") && Contains("head 1, 1: 1.2<") && !Contains("band f"));
  CHECK_THAT(charts({"a1", "a2"})[0].charts[1], Contains("head 0, 1: 0.2<") && Contains("band f") && Contains("Median over seeds"));
  CHECK_THAT(charts({"a1", "a2", "b1"})[0].charts[1],
             Contains("vit, iterations 1 (2 seeds), 1: 0.7<") && Contains("vit, iterations 5, 1: 0.7<") && Contains("Median over heads and seeds"));
  write("none", 1, 1, 0);
  CHECK_THROWS_WITH(charts({"none"}), Contains("train with --attention-every"));
}
