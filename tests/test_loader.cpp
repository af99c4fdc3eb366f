// Batches that are loaded ahead on another thread: the same batches in the same memory, errors that come out at the caller, no lost wakeups.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "datasets/dataset.h"

using namespace sinkgrad;

namespace {

/// Item i of epoch e holds i + 100 e; remembers which threads loaded it.
struct Counting : Dataset {
  int64_t size() const override { return 10; }
  Shape item_shape() const override { return {2}; }
  const std::vector<std::string>& class_names() const override { return names; }
  std::string description() const override { return "counting"; }
  std::vector<int64_t> label_histogram() const override { return {10}; }
  void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const override {
    if (std::this_thread::get_id() != caller) ++elsewhere;
    for (size_t i = 0; i < indices.size(); ++i) {
      require<InputError>(indices[i] != broken, "item ", broken, " is broken");
      inputs[2 * i] = inputs[2 * i + 1] = static_cast<float>(indices[i] + 100 * epoch.value_or(0));
      labels[i] = 0;
    }
  }
  std::vector<std::string> names{"all"};
  uint32_t broken = UINT32_MAX;
  std::thread::id caller = std::this_thread::get_id();
  mutable std::atomic<int> elsewhere{0};
};

std::vector<double> inputs(const Batch& batch) { return to_doubles(batch.inputs.view()); }

}  // namespace

TEST_CASE("batches loaded ahead are those that load() gives, at the same addresses") {
  const Counting data;
  BatchLoader plain(data, 4, Purpose::training, 3), ahead(data, 4, Purpose::training, 3);
  void* address = nullptr;
  for (uint64_t epoch = 0; epoch < 50; ++epoch)
    for (int64_t position = 0; position < 3; ++position) {
      const Batch batch = ahead.load(epoch, position);
      if (position + 1 < 3) ahead.prefetch(epoch, position + 1);
      REQUIRE(inputs(batch) == inputs(plain.load(epoch, position)));
      if (!address) address = batch.inputs.view().data;
      REQUIRE(batch.inputs.view().data == address);
      REQUIRE(batch.size() == (position == 2 ? 2 : 4));
    }
  CHECK(data.elsewhere == 100);
}

TEST_CASE("a batch that was loaded ahead and not asked for does no harm") {
  const Counting data;
  BatchLoader loader(data, 4, Purpose::evaluation);
  loader.prefetch(0, 2);
  CHECK(inputs(loader.load(0, 1)) == std::vector<double>{4, 4, 5, 5, 6, 6, 7, 7});
  loader.prefetch(0, 2);
  loader.prefetch(0, 0);
  const Batch first = loader.load(0, 0);
  loader.prefetch(0, 2);  // the batch at hand stays
  CHECK(inputs(first) == std::vector<double>{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(inputs(loader.load(0, 2)) == std::vector<double>{8, 8, 9, 9});
  loader.prefetch(0, 0);  // pending when the loader goes
}

TEST_CASE("an error on the other thread comes out of the next load, which can go on") {
  Counting data;
  data.broken = 5;
  BatchLoader loader(data, 4, Purpose::evaluation);
  loader.prefetch(0, 1);
  CHECK_THROWS_WITH(loader.load(0, 1), "item 5 is broken");
  CHECK(inputs(loader.load(0, 2)) == std::vector<double>{8, 8, 9, 9});
  CHECK_THROWS_AS(loader.load(0, 1), InputError);
  loader.prefetch(0, 0);
  CHECK(inputs(loader.load(0, 0))[7] == 3);
}

TEST_CASE("the worker does one job after the other") {
  BackgroundWorker worker;
  worker.wait();  // nothing to wait for
  int count = 0;
  for (int i = 0; i < 1000; ++i) {
    worker.start([&] { ++count; });
    worker.wait();
  }
  CHECK(count == 1000);
  worker.start([] { throw InputError("no"); });
  CHECK_THROWS_AS(worker.wait(), InputError);
  worker.start([&] { ++count; });
  worker.wait();
  CHECK(count == 1001);
  std::atomic<bool> go{false};
  worker.start([&] {
    while (!go) std::this_thread::yield();
  });
  CHECK_THROWS_AS(worker.start([] {}), Error);
  go = true;
  worker.wait();
}
