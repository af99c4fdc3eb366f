// Training the small reference models through the CUDA kernels on the host executor: the losses of the CPU. Skipped without the files.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "cuda/self_test.h"
#include "nn/trainer.h"
#include "parity_models.h"
#include "simt/executor.h"

using namespace sinkgrad;

namespace {

std::filesystem::path fixtures() {
  const char* folder = std::getenv("SINKGRAD_FIXTURES");
  return folder ? std::filesystem::path(folder) : std::filesystem::path(SINKGRAD_SOURCE_DIR) / ".." / "shared" / "fixtures";
}

/// The batches of a reference file as items.
class FileData final : public Dataset {
 public:
  explicit FileData(const parity::Fixture& f) : inputs_(f.at("in/batches")), labels_(to_doubles(f.at("in/labels").view())) {
    for (int i = 2; i < inputs_.shape().rank(); ++i) item_.push_back(inputs_.shape()[i]);
    for (int64_t c = 0; c <= static_cast<int64_t>(*std::max_element(labels_.begin(), labels_.end())); ++c) names_.push_back(cat(c));
  }
  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int64_t batch_size() const { return inputs_.shape()[1]; }
  Shape item_shape() const override { return item_; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string description() const override { return "reference file"; }
  std::vector<int64_t> label_histogram() const override { return {}; }
  void load(std::span<const uint32_t> indices, std::optional<uint64_t>, float* inputs, int32_t* labels) const override {
    const int64_t n = item_.count();
    for (const uint32_t i : indices) {
      const float* item = inputs_.span<float>().data() + i * n;
      inputs = std::copy(item, item + n, inputs);
      *labels++ = static_cast<int32_t>(labels_[i]);
    }
  }

 private:
  Tensor inputs_;
  std::vector<double> labels_;
  Shape item_;
  std::vector<std::string> names_;
};

using Factory = std::unique_ptr<Classifier>(const parity::Fixture&);

std::vector<double> losses(const parity::Fixture& f, Factory make, Device device, int64_t steps, uint64_t* replayed) {
  const auto model = make(f);
  const FileData data(f);
  Trainer trainer(*model, data, {.schedule = {.lr = f.number("lr", 1e-3)}, .epochs = steps, .batch_size = data.batch_size(), .device = device});
  parity::load_parameters(f, *model);  // the executor's memory is the host's
  std::vector<double> result;
  while (static_cast<int64_t>(result.size()) < steps) {
    if (trainer.epoch_complete()) trainer.end_epoch(0);
    result.push_back(trainer.step().loss);
  }
  *replayed = trainer.replayed();
  return result;
}

void compare(const char* file, Factory make) {
  const auto path = fixtures() / file;
  if (!std::filesystem::exists(path)) {
    WARN("skipped: there is no " << path << "; set SINKGRAD_FIXTURES");
    return;
  }
  constexpr int64_t kSteps = 20;
  const parity::Fixture f(path);
  uint64_t replayed = 0;
  const auto cpu = losses(f, make, Device::cpu(), kSteps, &replayed), gpu = losses(f, make, Device::cuda(), kSteps, &replayed);
  CHECK(replayed >= kSteps / 2);
  double worst = 0;
  for (size_t i = 0; i < cpu.size(); ++i) worst = std::max(worst, std::isnan(gpu[i]) ? INFINITY : std::abs(gpu[i] - cpu[i]) / std::abs(cpu[i]));
  INFO(file << ": largest difference of a loss " << worst << ", first loss " << cpu.front() << ", last " << cpu.back());
  CHECK(worst <= 1e-4);
  CHECK(cpu.back() < cpu.front());
}

}  // namespace

TEST_CASE("20 steps of the tiny ViT have the losses of the CPU") { compare("train_vit.safetensors", parity::vit_of); }
TEST_CASE("20 steps of the Set Sinkformer have the losses of the CPU") { compare("train_set_sinkformer.safetensors", parity::set_transformer_of); }

TEST_CASE("the self-test passes where kernels run") { CHECK(cuda::self_test(Device::cuda().backend()).empty()); }
