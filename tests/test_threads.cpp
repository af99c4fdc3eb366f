// Several tapes on several threads at once: nothing is shared but what is made for it. ThreadSanitizer runs this test, too (tools/sanitize.sh).
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "core/parallel.h"
#include "datasets/registry.h"
#include "models/registry.h"
#include "nn/trainer.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

/// What a run leaves behind.
struct Trained {
  std::vector<double> losses;
  std::vector<float> parameters;
  double accuracy = 0;
};

Trained train(const nlohmann::json& config, const char* data_name, uint64_t seed) {
  set_threads(2);
  const nlohmann::json options =
      data_name == std::string("shapes") ? nlohmann::json{{"points", 40}, {"train", 48}, {"test", 16}} : nlohmann::json{{"train", 48}, {"test", 16}};
  DataSplits data = make_dataset(data_name, options);
  data.train = prepare_data(config, std::move(data.train));
  data.test = prepare_data(config, std::move(data.test));
  const auto model = make_model(config, data.train->item_shape(), data.train->classes());
  Trainer trainer(*model, *data.train, {.optimizer = {.kind = OptimizerOptions::Kind::adamw}, .clip_norm = 1, .batch_size = 16, .seed = seed});
  Trained trained;
  while (!trainer.epoch_complete()) trained.losses.push_back(trainer.step().loss);
  trained.accuracy = trainer.evaluate(*data.test).accuracy();
  const auto values = trainer.parameters().values().span<float>();
  trained.parameters.assign(values.begin(), values.end());
  return trained;
}

struct Run {
  nlohmann::json config;
  const char* data;
};
const std::vector<Run> kRuns = {
    {{{"name", "set_transformer"}, {"dim", 16}, {"heads", 2}, {"inducing", 4}, {"iterations", 3}, {"dropout", 0.1}}, "shapes"},
    {{{"name", "point_cloud_transformer"}, {"width", 8}, {"centres", 16}, {"neighbours", 4}, {"iterations", 3}}, "shapes"},
    {{{"name", "vit"}, {"patch", 7}, {"dim", 16}, {"depth", 1}, {"heads", 2}, {"head_dim", 8}, {"mlp_dim", 32}, {"iterations", 5}}, "digits"},
    {{{"name", "vit"}, {"patch", 7}, {"dim", 16}, {"depth", 1}, {"heads", 2}, {"head_dim", 8}, {"mlp_dim", 32}, {"gradient", "implicit"}}, "digits"},
};

/// Calls body(k) for k = 0 .. count-1, each on a thread of its own, all let go at the same moment.
template <class Body>
void at_once(size_t count, Body body) {
  std::atomic<size_t> waiting{count};
  std::vector<std::thread> threads;
  for (size_t k = 0; k < count; ++k)
    threads.emplace_back([&, k] {
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      body(k);
    });
  for (std::thread& t : threads) t.join();
}

}  // namespace

TEST_CASE("models trained at once, each on its own thread and tape, equal those trained one after the other, to the bit") {
  // First at once: what is made when it is first used is then made by several threads.
  std::vector<Trained> together(kRuns.size());
  at_once(kRuns.size(), [&](size_t k) { together[k] = train(kRuns[k].config, kRuns[k].data, k); });
  for (size_t k = 0; k < kRuns.size(); ++k) {
    const Trained alone = train(kRuns[k].config, kRuns[k].data, k);
    INFO(kRuns[k].config);
    CHECK(together[k].losses.size() == 3);
    CHECK(together[k].losses == alone.losses);
    CHECK(together[k].parameters == alone.parameters);
    CHECK(together[k].accuracy == alone.accuracy);
  }
}

TEST_CASE("tapes of several threads read the same tensors, and each has its own gradients") {
  constexpr size_t kThreads = 4;
  const Tensor scores = Tensor::of<double>({2, 3}, {1, 2, 3, 5, 8, 13}), weight = Tensor::of<double>({2, 3}, {1, 0, 0, 2, 0, 3});
  std::vector<std::vector<double>> gradients(kThreads);
  at_once(kThreads, [&](size_t k) {
    Tape tape(DType::f64);
    for (int step = 0; step < 20; ++step) {
      tape.reset();
      const Var x = tape.variable(scores);
      tape.backward(sum(mul(sinkhorn(x, {.iterations = 5}), tape.leaf(weight))));
      const View gradient = tape.grad(x);
      gradients[k].assign(gradient.as<double>(), gradient.as<double>() + 6);
    }
  });
  for (size_t k = 1; k < kThreads; ++k) {
    CHECK(gradients[k] == gradients[0]);
    CHECK(gradients[k][0] != 0);
  }
}
