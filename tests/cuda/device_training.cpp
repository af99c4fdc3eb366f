// The trainer on the device: near the CPU, the same bits whether steps are recorded or not, steady memory, resuming, divergence.
// Runs on a GPU and on the host executor.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <limits>

#include "core/file.h"
#include "core/memory.h"
#include "nn/trainer.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

/// Three blobs in eight dimensions.
struct Blobs : Dataset {
  explicit Blobs(int64_t count) : items(count) {}
  int64_t size() const override { return items; }
  Shape item_shape() const override { return {8}; }
  const std::vector<std::string>& class_names() const override {
    static const std::vector<std::string> names = {"a", "b", "c"};
    return names;
  }
  std::string description() const override { return "blobs"; }
  void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const override {
    for (size_t i = 0; i < indices.size(); ++i) {
      RandomStream random(indices[i], "blob", epoch.value_or(0));
      labels[i] = static_cast<int32_t>(indices[i] % 3);
      for (int j = 0; j < 8; ++j) inputs[i * 8 + static_cast<size_t>(j)] = static_cast<float>((j % 3 == labels[i]) + 0.5 * random.normal());
      if (indices[i] == poisoned) inputs[i * 8] = std::numeric_limits<float>::quiet_NaN();
      if (indices[i] == mislabelled) labels[i] = 3;
    }
  }
  std::vector<int64_t> label_histogram() const override { return {}; }
  int64_t items;
  uint32_t poisoned = UINT32_MAX, mislabelled = UINT32_MAX;
};

/// Dropout, batch statistics, and layers of odd sizes.
struct Net : Classifier {
  explicit Net(double p = 0.3) : drop(*this, "drop", p) {}
  // Batch norm takes a bias out again: its gradient would be rounding noise, which Adam turns into full steps.
  Linear in{*this, "in", 8, 21, {.bias = false}}, out{*this, "out", 21, 3};
  BatchNorm norm{*this, "norm", 21};
  Dropout drop;
  /// Asks the device for a value in the middle of a step: such a step cannot be recorded.
  bool looks = false;
  Var logits(Var x) override {
    const Var y = out(drop(relu(norm(in(x)))));
    if (looks) seen = to_doubles(y.tape->value(y), y.tape->device())[0];
    return y;
  }
  std::vector<AttentionHeads*> attentions() override { return {}; }
  double seen = 0;
};

TrainerOptions options(Device device) {
  return {.optimizer = {.kind = OptimizerOptions::Kind::adamw, .weight_decay = 0.01},
          .schedule = {.kind = ScheduleOptions::Kind::step, .lr = 0.02, .warmup = 3, .warmup_lr = 0.01, .milestones = {1, 2}, .gamma = 0.5},
          .clip_norm = 0.5,
          .label_smoothing = 0.1,
          .epochs = 3,
          .batch_size = 8,
          .eval_batch_size = 16,
          .seed = 7,
          .device = device};
}

using Log = std::vector<std::vector<double>>;
/// To the end of the run, or so many updates.
Log train(Trainer& trainer, const Dataset& test, int64_t updates = INT64_MAX) {
  Log log;
  while (updates > 0 && !trainer.finished()) {
    if (trainer.epoch_complete()) {
      const Score score = trainer.evaluate(test);
      log.push_back({score.loss(), static_cast<double>(score.correct), static_cast<double>(score.items)});
      trainer.end_epoch(score.accuracy());
    } else {
      const StepReport r = trainer.step();
      log.push_back({r.loss, r.gradient_norm, static_cast<double>(r.correct), r.lr, static_cast<double>(r.items)});
      --updates;
    }
  }
  return log;
}

struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "device-training-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()));
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

std::string checkpoint_bytes(const Trainer& trainer) {
  const Folder folder;
  trainer.save(folder.path / "c.safetensors");
  return read_file(folder.path / "c.safetensors", 1 << 24);
}

/// 44 items make 5 full batches and one of 4 an epoch.
const Blobs g_train(44), g_test(29);

}  // namespace

TEST_CASE("training on the device stays near training on the CPU") {
  Net here, there;
  Trainer cpu(here, g_train, options(Device::cpu())), gpu(there, g_train, options(Device::cuda()));
  const Log expected = train(cpu, g_test), got = train(gpu, g_test);
  REQUIRE(got.size() == expected.size());
  REQUIRE(got.size() == 18 + 3);
  for (size_t i = 0; i < got.size(); ++i)
    for (size_t k = 0; k < got[i].size(); ++k) {
      CAPTURE(i, k);
      CHECK(got[i][k] == Approx(expected[i][k]).epsilon(1e-4).margin(1e-6));
    }
}

TEST_CASE("recorded steps give the bits of steps that are not recorded") {
  Net recorded_net, plain_net, looking_net;
  Trainer recorded(recorded_net, g_train, options(Device::cuda())), plain(plain_net, g_train, options(Device::cuda()));
  looking_net.looks = true;
  Trainer looking(looking_net, g_train, options(Device::cuda()));
  const Log log = train(recorded, g_test);
  CHECK(recorded.replayed() >= 8);  // of 18: two run first, the last of each epoch is a smaller one
  CHECK(log == train(looking, g_test));
  CHECK(looking.replayed() == 0);
  CHECK(checkpoint_bytes(recorded) == checkpoint_bytes(looking));
  CHECK(log == train(plain, g_test));
}

TEST_CASE("a recorded step draws its dropout anew") {
  Net net(0.5);
  TrainerOptions o = options(Device::cuda());
  o.schedule = {.lr = 0};
  o.optimizer.weight_decay = 0;
  o.batch_size = 44;
  o.epochs = 1000;
  Trainer trainer(net, g_train, o);
  std::vector<double> losses;
  for (int i = 0; i < 8; ++i) {
    losses.push_back(trainer.step().loss);
    trainer.end_epoch(0);
  }
  CHECK(trainer.replayed() >= 4);
  std::sort(losses.begin(), losses.end());
  CHECK(std::unique(losses.begin(), losses.end()) == losses.end());
}

TEST_CASE("from the third step on memory and trace are steady") {
  Net net;
  TrainerOptions o = options(Device::cuda());
  o.epochs = 100;
  Trainer trainer(net, g_train, o);
  trainer.step();
  trainer.step();
  const uint64_t trace = trainer.step().trace, allocations = memory_stats().system_allocations, reserved = memory_stats().reserved_bytes;
  for (int k = 0; k < 2; ++k) CHECK(trainer.step().trace == trace);
  CHECK(trainer.step().trace != trace);  // the smaller last batch
  trainer.end_epoch(trainer.evaluate(g_test).accuracy());
  for (int k = 0; k < 5; ++k) CHECK(trainer.step().trace == trace);
  CHECK(memory_stats().system_allocations == allocations);
  CHECK(memory_stats().reserved_bytes == reserved);
}

TEST_CASE("a run resumed on the device equals one that did not stop, to the bit") {
  Net net;
  Trainer whole(net, g_train, options(Device::cuda()));
  const Log log = train(whole, g_test, 14);
  const std::string expected = checkpoint_bytes(whole);
  for (const int64_t stop : {0, 3, 7}) {
    CAPTURE(stop);
    const Folder folder;
    Net first_net, second_net;
    Trainer first(first_net, g_train, options(Device::cuda()));
    train(first, g_test, stop);
    first.save(folder.path / "last.safetensors");
    Trainer second(second_net, g_train, options(Device::cuda()));
    second.resume(read_checkpoint(folder.path / "last.safetensors"));
    const Log rest = train(second, g_test, 14 - stop);
    REQUIRE(rest.size() <= log.size());
    CHECK(std::equal(rest.rbegin(), rest.rend(), log.rbegin()));
    CHECK(checkpoint_bytes(second) == expected);
  }
}

TEST_CASE("a checkpoint of one device continues on the other") {
  const Folder folder;
  Net gpu_net, cpu_net;
  Trainer gpu(gpu_net, g_train, options(Device::cuda())), cpu(cpu_net, g_train, options(Device::cpu()));
  train(gpu, g_test, 4);
  gpu.save(folder.path / "gpu.safetensors");
  cpu.resume(read_checkpoint(folder.path / "gpu.safetensors"));
  CHECK(checkpoint_bytes(cpu) == checkpoint_bytes(gpu));
  CHECK(cpu.step().loss == Approx(gpu.step().loss).epsilon(1e-5));
}

TEST_CASE("divergence leaves the parameters and says where it began") {
  Net net;
  Blobs data(44);
  TrainerOptions o = options(Device::cuda());
  o.batch_size = 44;
  o.epochs = 100;
  Trainer trainer(net, data, o);
  for (int i = 0; i < 6; ++i) {  // by now steps are recorded
    trainer.step();
    trainer.end_epoch(0);
  }
  CHECK(trainer.replayed() > 0);
  const auto values = [&] { return to_doubles(trainer.parameters().values().view(), Device::cuda()); };
  const auto before = values();
  data.poisoned = 5;
  CHECK_THROWS_WITH(trainer.step(), Contains("the loss is not a number at update 7 (epoch 7, lr") &&
                                        Contains("an input of 'linear' (record 0, in module in) (44,8) is nan at (35,0)"));
  CHECK(values() == before);
  CHECK(trainer.state().step == 6);
  data.poisoned = UINT32_MAX;
  data.mislabelled = 5;
  CHECK_THROWS_WITH(trainer.step(), Contains("labels must lie in 0..2, got 3"));
  data.mislabelled = UINT32_MAX;
}
