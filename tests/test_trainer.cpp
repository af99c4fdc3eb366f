// The trainer on a tiny task: resuming and thread counts to the bit, evaluation over every item, divergence, checkpoints that do not fit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <mutex>

#include "core/file.h"
#include "core/parallel.h"
#include "core/safetensors.h"
#include "nn/layers.h"
#include "nn/trainer.h"
#include "temporary_folder.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

/// Three blobs in eight dimensions, moved a little in every epoch.
struct Blobs : Dataset {
  explicit Blobs(int64_t count, double noise_ = 0.5) : items(count), noise(noise_) {}
  int64_t size() const override { return items; }
  Shape item_shape() const override { return {8}; }
  const std::vector<std::string>& class_names() const override {
    static const std::vector<std::string> names = {"a", "b", "c"};
    return names;
  }
  std::string description() const override { return "blobs"; }
  void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const override {
    {
      const std::lock_guard lock(mutex);
      seen.insert(seen.end(), indices.begin(), indices.end());
      seen_epoch = epoch;
    }
    for (size_t i = 0; i < indices.size(); ++i) {
      RandomStream random(indices[i], "blob", epoch.value_or(0));
      labels[i] = static_cast<int32_t>(indices[i] % 3);
      for (int j = 0; j < 8; ++j) inputs[i * 8 + static_cast<size_t>(j)] = static_cast<float>((j % 3 == labels[i]) + noise * random.normal());
      if (indices[i] == poisoned) inputs[i * 8] = std::numeric_limits<float>::quiet_NaN();
    }
  }
  std::vector<int64_t> label_histogram() const override { return {}; }
  int64_t items;
  double noise;
  uint32_t poisoned = UINT32_MAX;
  mutable std::mutex mutex;  // a trainer loads ahead on another thread
  mutable std::vector<uint32_t> seen;
  mutable std::optional<uint64_t> seen_epoch;
};

/// Dropout, batch statistics and layers wide enough for several threads.
struct Net : Classifier {
  Linear in{*this, "in", 8, 96}, out{*this, "out", 96, 3};
  BatchNorm norm{*this, "norm", 96};
  Dropout drop{*this, "drop", 0.3};
  bool break_gradient = false;
  Parameter& bomb = parameter("bomb", {3}, Init::constant(0));
  Var logits(Var x) override {
    Var y = out(drop(relu(norm(in(x)))));
    // d sqrt(x)/dx is infinite at 0, and 0 times infinity is NaN.
    return break_gradient ? add(y, scale_shift(sqrt(bomb.on(*x.tape)), 0, 0)) : y;
  }
  std::vector<AttentionHeads*> attentions() override { return {}; }
};

struct DropoutNet : Classifier {
  Linear out{*this, "out", 8, 3};
  Dropout drop{*this, "drop", 0.5};
  Var logits(Var x) override { return out(drop(x)); }
  std::vector<AttentionHeads*> attentions() override { return {}; }
};

TrainerOptions options(OptimizerOptions::Kind kind = OptimizerOptions::Kind::adamw) {
  return {.optimizer = {.kind = kind, .momentum = 0.9, .weight_decay = 0.01},
          .schedule = {.kind = ScheduleOptions::Kind::step, .lr = 0.02, .warmup = 3, .warmup_lr = 0.01, .milestones = {1, 2}, .gamma = 0.5},
          .clip_norm = 0.5,
          .label_smoothing = 0.1,
          .epochs = 3,
          .batch_size = 8,
          .eval_batch_size = 16,
          .seed = 7};
}

/// Everything that a log would show of one update.
using LogLine = std::vector<double>;
LogLine line(const StepReport& r) {
  return {r.loss, r.lr, r.gradient_norm, static_cast<double>(r.correct), static_cast<double>(r.items), static_cast<double>(r.tape_bytes)};
}

const Blobs g_train(37), g_test(29);

/// Up to `updates` updates, with an evaluation after each epoch.
void advance(Trainer& trainer, int64_t updates, std::vector<LogLine>& log) {
  while (updates > 0 && !trainer.finished()) {
    if (trainer.epoch_complete()) {
      const Score test = trainer.evaluate(g_test), train = trainer.take_window();
      log.push_back({test.loss(), test.accuracy(), train.loss(), train.accuracy(), static_cast<double>(trainer.end_epoch(test.accuracy()))});
    } else {
      log.push_back(line(trainer.step()));
      --updates;
    }
  }
}

std::string checkpoint_bytes(const Trainer& trainer) {
  const TemporaryFolder folder;
  trainer.save(folder.path / "c.safetensors", {{"name", "blobs"}});
  return read_file(folder.path / "c.safetensors", 1 << 24);
}

}  // namespace

TEST_CASE("a precision that the device does not have is refused before training") {
  Net model;
  TrainerOptions o = options();
  o.precision = Precision::tf32;
  REQUIRE_THROWS_WITH(Trainer(model, g_train, o), Contains("tf32 products need a CUDA device, got"));
}

TEST_CASE("fault 53: a resumed run equals one that did not stop, to the bit, wherever it stopped") {
  for (const auto kind : {OptimizerOptions::Kind::adamw, OptimizerOptions::Kind::sgd}) {
    Net net;
    Trainer whole(net, g_train, options(kind));
    std::vector<LogLine> whole_log;
    advance(whole, 14, whole_log);
    const std::string expected = checkpoint_bytes(whole);
    for (const int64_t stop : {0, 1, 3, 5, 6, 10, 13}) {
      CAPTURE(stop);
      const TemporaryFolder folder;
      std::vector<LogLine> log;
      {
        Net first_net;
        Trainer first(first_net, g_train, options(kind));
        advance(first, stop, log);
        first.save(folder.path / "last.safetensors");
      }
      Net second_net;
      Trainer second(second_net, g_train, options(kind));
      second.resume(read_checkpoint(folder.path / "last.safetensors"));
      REQUIRE(second.state().step == stop);
      advance(second, 14 - stop, log);
      CHECK(log == whole_log);
      CHECK(checkpoint_bytes(second) == expected);
    }
  }
}

TEST_CASE("fault 51: the learning rate in the report is the one the update used") {
  Net net;
  TrainerOptions o = options(OptimizerOptions::Kind::sgd);
  o.optimizer = {.kind = OptimizerOptions::Kind::sgd};
  o.clip_norm = 0;
  Trainer trainer(net, g_train, o);
  for (int u = 0; u < 6; ++u) {
    if (trainer.epoch_complete()) trainer.end_epoch(0);
    const float before = net.out.weight.value.as<float>()[0];
    const StepReport report = trainer.step();
    const double expected = u < 3 ? 0.01 + 0.01 * u / 3 : u < 5 ? 0.02 : 0.01;
    CHECK(report.lr == Approx(expected));
    CHECK(before - net.out.weight.value.as<float>()[0] == Approx(expected * net.out.weight.grad.as<float>()[0]).epsilon(1e-3));
  }
}

TEST_CASE("every epoch has all items in a new order, every update a new dropout mask") {
  const Blobs data(37, 0);  // without noise the epochs hold the same items
  Net net;
  TrainerOptions o = options(OptimizerOptions::Kind::sgd);
  o.optimizer.weight_decay = 0;
  o.schedule = {.lr = 0};
  o.batch_size = 37;
  Trainer trainer(net, data, o);
  std::vector<std::vector<uint32_t>> orders;
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    data.seen.clear();
    trainer.step();
    CHECK(data.seen_epoch == epoch);
    orders.push_back(data.seen);
    trainer.end_epoch(0);
  }
  CHECK(orders[0] != orders[1]);
  for (std::vector<uint32_t>& order : orders) std::sort(order.begin(), order.end());
  CHECK(orders[0] == orders[1]);
  CHECK(std::unique(orders[0].begin(), orders[0].end()) == orders[0].end());
  CHECK(orders[0].size() == 37);

  // One item, the weights at rest: only the mask differs.
  const Blobs one(1, 0);
  DropoutNet drop;
  o.batch_size = 1;
  Trainer single(drop, one, o);
  const double first = single.step().loss;
  single.end_epoch(0);
  CHECK(single.step().loss != first);
}

TEST_CASE("training gives the same bits for 1, 2 and 3 threads") {
  std::string bytes[3];
  for (int n = 1; n <= 3; ++n) {
    set_threads(n);
    Net net;
    TrainerOptions o = options();
    o.batch_size = 37;
    Trainer trainer(net, g_train, o);
    std::vector<LogLine> log;
    advance(trainer, 3, log);
    bytes[n - 1] = checkpoint_bytes(trainer);
  }
  set_threads(1);
  CHECK(bytes[0] == bytes[1]);
  CHECK(bytes[0] == bytes[2]);
}

TEST_CASE("training learns the task") {
  Net net;
  TrainerOptions o = options();
  o.epochs = 15;
  Trainer trainer(net, g_train, o);
  const double before = trainer.evaluate(g_test).loss();
  std::vector<LogLine> log;
  advance(trainer, 1000, log);
  CHECK(trainer.finished());
  const Score after = trainer.evaluate(g_test);
  CHECK(after.loss() < 0.5 * before);
  CHECK(after.accuracy() > 0.9);
  CHECK(trainer.state().best_accuracy >= after.accuracy());
}

TEST_CASE("fault 61: evaluation sees every item once, whatever the batch size") {
  Net net;
  Trainer trainer(net, g_train, options());
  std::vector<LogLine> log;
  advance(trainer, 4, log);
  const std::string before = checkpoint_bytes(trainer);
  const Score whole = evaluate(trainer.tape(), net, g_test, 29);
  CHECK(whole.items == 29);
  for (const int64_t batch : {1, 2, 7, 28, 64}) {
    const Score score = evaluate(trainer.tape(), net, g_test, batch);
    CHECK(score.items == 29);
    CHECK(score.correct == whole.correct);
    CHECK(score.loss() == Approx(whole.loss()).epsilon(1e-5));
  }
  CHECK(evaluate(trainer.tape(), net, Blobs(1), 32).items == 1);
  // Neither dropout nor batch statistics have moved anything, and training goes on as before.
  CHECK(checkpoint_bytes(trainer) == before);
  CHECK(trainer.tape().training());
  CHECK(trainer.tape().recording());
}

TEST_CASE("a prediction that is not a number is wrong and never the best") {
  Blobs poisoned(3);
  poisoned.poisoned = 0;
  Net net;
  Trainer trainer(net, g_train, options());
  std::vector<LogLine> log;
  advance(trainer, 14, log);
  const Score score = trainer.evaluate(poisoned);
  CHECK(score.correct <= 2);
  CHECK_FALSE(std::isfinite(score.loss()));
  while (!trainer.epoch_complete()) trainer.step();
  const double best = trainer.state().best_accuracy;
  CHECK_FALSE(trainer.end_epoch(std::numeric_limits<double>::quiet_NaN()));
  CHECK(trainer.state().best_accuracy == best);
}

TEST_CASE("divergence stops before the parameters change and says where it began") {
  Net net;
  Blobs data(37);
  TrainerOptions o = options();
  o.batch_size = 37;
  Trainer trainer(net, data, o);
  trainer.step();
  trainer.end_epoch(0);
  const Tensor before = trainer.parameters().values().clone();

  data.poisoned = 5;
  CHECK_THROWS_AS(trainer.step(), DivergedError);
  CHECK_THROWS_WITH(trainer.step(), Contains("the loss is not a number at update 2 (epoch 2, lr") &&
                                        Contains("an input of 'linear' (record 0, in module in) (37,8) is nan at "));
  data.poisoned = UINT32_MAX;
  net.break_gradient = true;
  CHECK_THROWS_WITH(trainer.step(), Contains("the gradient norm is not a number at update 2") && Contains("the gradient of bomb (3) is nan at (0)"));
  CHECK(to_doubles(trainer.parameters().values().view()) == to_doubles(before.view()));
  CHECK(trainer.state().step == 1);

  net.break_gradient = false;
  CHECK(std::isfinite(trainer.step().loss));
}

TEST_CASE("a checkpoint that does not fit lists every difference and changes nothing") {
  struct OtherNet : Classifier {
    Linear in{*this, "in", 8, 95}, out{*this, "exit", 96, 3};
    Var logits(Var x) override { return x; }
    std::vector<AttentionHeads*> attentions() override { return {}; }
  };
  const TemporaryFolder folder;
  const auto path = folder.path / "last.safetensors";
  Net net;
  Trainer trainer(net, g_train, options());
  trainer.step();
  trainer.save(path);
  const Checkpoint checkpoint = read_checkpoint(path);

  OtherNet other;
  ParameterPack pack(other, DType::f32, 1);
  const Tensor before = pack.values().clone();
  for (const char* part :
       {"model.in.weight must be f32 (95,8), got f32 (96,8)", "model.in.bias must be f32 (95), got f32 (96)",
        "model.exit.weight f32 (3,96) is missing", "model.out.weight f32 (3,96) is unexpected", "model.norm.running_mean f32 (96) is unexpected"})
    CHECK_THROWS_WITH(checkpoint.restore(pack), Contains(part) && Contains(path.string()));
  CHECK_THROWS_AS(checkpoint.restore(pack), InputError);
  CHECK_THROWS_WITH(checkpoint.restore(pack), !Contains("optim."));
  CHECK(to_doubles(pack.values().view()) == to_doubles(before.view()));

  // The model alone fits; with another optimizer the moments do not.
  Net same;
  ParameterPack same_pack(same, DType::f32, 1);
  checkpoint.restore(same_pack);
  CHECK(to_doubles(same_pack.values().view()) == to_doubles(trainer.parameters().values().view()));
  Optimizer sgd(same_pack, {.kind = OptimizerOptions::Kind::sgd});
  CHECK_THROWS_WITH(checkpoint.restore(same_pack, &sgd), Contains("optim.m.in.weight f32 (96,8) is unexpected"));
}

TEST_CASE("a run does not continue another one") {
  const TemporaryFolder folder;
  const auto path = folder.path / "last.safetensors";
  Net net;
  Trainer trainer(net, g_train, options());
  trainer.step();
  trainer.save(path);
  const Checkpoint checkpoint = read_checkpoint(path);
  TrainerOptions o = options();
  o.seed = 8;
  CHECK_THROWS_WITH(Trainer(net, g_train, o).resume(checkpoint), Contains("was made with seed 7, this run has 8"));
  o = options();
  o.batch_size = 4;
  CHECK_THROWS_WITH(Trainer(net, g_train, o).resume(checkpoint), Contains("was made with batch size 8, this run has 4"));
  CHECK_THROWS_WITH(Trainer(net, g_test, options()).resume(checkpoint), Contains("was made with training items 37, this run has 29"));
}

TEST_CASE("files that are no checkpoints are refused with their name") {
  const TemporaryFolder folder;
  const auto path = folder.path / "c.safetensors";
  CHECK_THROWS_AS(read_checkpoint(path), IoError);
  write_safetensors(path, {});
  CHECK_THROWS_WITH(read_checkpoint(path), Contains("c.safetensors: is no checkpoint of sinkgrad"));
  for (const char* text :
       {"{", "[]", R"({"format": 1})", R"({"format": 1, "recipe": {}, "state": {"seed": "x"}})", R"({"format": 2, "recipe": {}, "state": {}})"}) {
    write_safetensors(path, {}, {{"sinkgrad", text}});
    CHECK_THROWS_AS(read_checkpoint(path), InputError);
    CHECK_THROWS_WITH(read_checkpoint(path), Contains("c.safetensors: "));
  }
}
