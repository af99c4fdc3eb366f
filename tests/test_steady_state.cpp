// From the third step on a training step asks nothing of the heap or the system and repeats its trace.
// The heap is watched by replacing malloc and operator new; calls that the product libraries (oneDNN, OpenBLAS, OpenMP) make for
// themselves are told apart by the module of the caller.
#include <dlfcn.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <new>

#include "core/memory.h"
#include "core/parallel.h"
#include "datasets/registry.h"
#include "datasets/text_classification.h"
#include "models/registry.h"
#include "nn/trainer.h"

extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_memalign(size_t, size_t);

namespace {

std::atomic<bool> g_watching{false};
std::atomic<int> g_allocations{0};

void count(void* caller) {
  if (!g_watching.load(std::memory_order_relaxed)) return;
  Dl_info info;
  if (dladdr(caller, &info) && info.dli_fname &&
      (std::strstr(info.dli_fname, "libdnnl") || std::strstr(info.dli_fname, "openblas") || std::strstr(info.dli_fname, "libgomp")))
    return;
  ++g_allocations;
}

}  // namespace

extern "C" void* malloc(size_t bytes) {
  count(__builtin_return_address(0));
  return __libc_malloc(bytes);
}
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) {
  count(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
void* operator new(size_t bytes) {
  count(__builtin_return_address(0));
  if (void* p = __libc_malloc(bytes)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

using namespace sinkgrad;

namespace {

struct Images final : Dataset {
  std::vector<std::string> names{"a", "b", "c"};
  int64_t size() const override { return 64; }
  Shape item_shape() const override { return {1, 8, 8}; }
  const std::vector<std::string>& class_names() const override { return names; }
  std::string description() const override { return "noise"; }
  std::vector<int64_t> label_histogram() const override { return {22, 21, 21}; }
  void load(std::span<const uint32_t> indices, std::optional<uint64_t>, float* inputs, int32_t* labels) const override {
    for (size_t k = 0; k < indices.size(); ++k) {
      RandomStream random(indices[k], "noise");
      for (int i = 0; i < 64; ++i) inputs[k * 64 + static_cast<size_t>(i)] = static_cast<float>(random.normal());
      labels[k] = static_cast<int32_t>(indices[k] % 3);
    }
  }
};

void check_steady(Model& model, const DataSource& data, const OptimizerOptions& optimizer) {
  Trainer trainer(model, data, {.optimizer = optimizer, .clip_norm = 1, .epochs = 4, .batch_size = 8});
  trainer.step();
  trainer.step();
  const uint64_t trace = trainer.step().trace;
  const auto system = memory_stats().system_allocations;
  g_allocations = 0;
  for (int k = 0; k < 4; ++k) {
    g_watching = true;
    const uint64_t again = trainer.step().trace;
    g_watching = false;
    CHECK(again == trace);
  }
  CHECK(g_allocations == 0);
  CHECK(memory_stats().system_allocations == system);
}

}  // namespace

TEST_CASE("the watch sees an allocation") {
  g_allocations = 0;
  g_watching = true;
  auto* volatile p = new int(1);
  g_watching = false;
  CHECK(g_allocations == 1);
  delete p;
}

TEST_CASE("a training step of the ViT is steady from the third on") {
  for (int n : {1, 2}) {
    set_threads(n);
    const Images data;
    const auto model =
        make_model({{"name", "vit"}, {"patch", 4}, {"dim", 16}, {"depth", 2}, {"heads", 2}, {"head_dim", 8}, {"mlp_dim", 32}, {"iterations", 3}},
                   data.item_shape(), data.classes());
    check_steady(*model, data, {.kind = OptimizerOptions::Kind::adamw, .weight_decay = 0.01});
  }
}

TEST_CASE("a training step of the Set Sinkformer is steady from the third on") {
  set_threads(2);
  const auto data = make_dataset("shapes", {{"points", 50}, {"train", 64}, {"test", 8}}).train;
  const auto model =
      make_model({{"name", "set_transformer"}, {"dim", 16}, {"heads", 2}, {"inducing", 4}, {"iterations", 5}}, data->item_shape(), data->classes());
  check_steady(*model, *data, {});
}

TEST_CASE("a training step on texts of one length is steady from the third on") {
  set_threads(2);
  TokenRows texts;
  std::vector<int32_t> labels;
  for (int32_t i = 0; i < 64; ++i) {
    texts.push_back(std::vector<int32_t>(static_cast<size_t>(3 + i % 5), 2 + i % 7));
    labels.push_back(i % 2);
  }
  const TextClassification data(
      {.name = "toy", .split = "train", .class_names = {"a", "b"}, .vocabulary = 10, .max_length = 12, .batches = TextBatches::fixed}, texts, labels);
  const auto model = make_model({{"name", "text_encoder"}, {"dim", 16}, {"depth", 2}, {"heads", 2}, {"mlp_dim", 32}, {"iterations", 3}},
                                data.item_shape(), data.classes());
  check_steady(*model, data, {});
}

TEST_CASE("a training step of the PCT is steady from the third on") {
  set_threads(2);
  for (int iterations : {1, 3}) {
    const nlohmann::json config = {{"name", "point_cloud_transformer"}, {"width", 8}, {"centres", 16}, {"neighbours", 4}, {"iterations", iterations}};
    const auto data = prepare_data(config, make_dataset("shapes", {{"points", 40}, {"train", 64}, {"test", 8}}).train);
    const auto model = make_model(config, data->item_shape(), data->classes());
    check_steady(*model, *data, {.kind = OptimizerOptions::Kind::sgd, .momentum = 0.9});
  }
}
