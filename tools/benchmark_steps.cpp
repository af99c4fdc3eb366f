// Whole training steps on random items: the cost of a step does not depend on what the items show, so no data set is needed.
#include <fmt/format.h>

#include "datasets/tokens.h"
#include "models/registry.h"
#include "nn/trainer.h"
#include "tools/benchmark.h"

namespace sinkgrad {
namespace {

using Json = nlohmann::json;

/// A few batches of random items with random labels: images or sets (n, item), or texts that all have the greatest length.
class RandomItems : public DataSource {
 public:
  explicit RandomItems(const StepCase& c) : item_(c.item), texts_(c.texts), size_(4 * c.batch) {
    for (int64_t k = 0; k < c.classes; ++k) names_.push_back(fmt::format("{}", k));
    RandomStream random(1, "bench items");
    if (texts_)
      tokens_.resize(static_cast<size_t>(size_ * item_[0]));
    else
      values_.resize(static_cast<size_t>(size_ * item_.count()));
    for (int32_t& token : tokens_) token = 1 + static_cast<int32_t>(random.below(static_cast<uint64_t>(item_[1] - 1)));
    for (float& value : values_) value = static_cast<float>(random.uniform(-1, 1));
    for (int64_t i = 0; i < size_; ++i) labels_.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(c.classes))));
  }
  int64_t size() const override { return size_; }
  Shape item_shape() const override { return item_; }
  const std::vector<std::string>& class_names() const override { return names_; }
  std::string description() const override { return cat("random items ", item_); }
  std::vector<int64_t> label_histogram() const override {
    std::vector<int64_t> counts(names_.size());
    for (const int32_t label : labels_) ++counts[static_cast<size_t>(label)];
    return counts;
  }
  Batch batch(const BatchItems& items, std::optional<uint64_t>, BatchMemory& memory) const override {
    const std::span<const uint32_t> indices = items.wanted;
    const auto n = static_cast<int64_t>(indices.size());
    Batch b{.inputs = {}, .labels = memory.labels({n}, DType::i32)};
    for (size_t i = 0; i < indices.size(); ++i) b.labels.span<int32_t>()[i] = labels_[indices[i]];
    if (texts_) {
      const auto length = static_cast<size_t>(item_[0]);
      b.inputs = memory.inputs({3, n, item_[0]}, DType::i32);
      write_tokens(b.inputs, {}, [&](int64_t i) { return std::span(tokens_).subspan(indices[static_cast<size_t>(i)] * length, length); });
    } else {
      const auto length = static_cast<size_t>(item_.count());
      b.inputs = memory.inputs({n, item_.count()}, DType::f32);
      for (size_t i = 0; i < indices.size(); ++i)
        std::copy_n(values_.data() + indices[i] * length, length, b.inputs.span<float>().data() + i * length);
      Shape shape{n};
      for (int k = 0; k < item_.rank(); ++k) shape.push_back(item_[k]);
      b.inputs = b.inputs.first(shape);
    }
    return b;
  }

 private:
  Shape item_;
  bool texts_;
  int64_t size_;
  std::vector<std::string> names_;
  std::vector<float> values_;
  std::vector<int32_t> tokens_, labels_;
};

/// Attributes the time since the last record to the one that has just run.
class OpTimes : public Observer {
 public:
  explicit OpTimes(const Stopwatch& clock) : clock_(clock) {}
  void begin() { last_ = clock_.now(); }
  void after_forward(const Tape&, const Record& r) override {
    StepTiming::OpTime& op = ops[r.op->name];
    op.forward += lap();
    ++op.calls;
  }
  void after_backward(const Tape&, const Record& r, std::span<const Grad>) override { ops[r.op->name].backward += lap(); }

  std::map<std::string, StepTiming::OpTime> ops;

 private:
  double lap() {
    const double before = std::exchange(last_, clock_.now());
    return last_ - before;
  }
  const Stopwatch& clock_;
  double last_ = 0;
};

}  // namespace

std::vector<StepCase> step_cases() {
  const auto digits = [](int64_t patch) {
    return StepCase{.name = cat("mnist_patch", patch),
                    .model = {{"name", "vit_attention_only"}, {"patch", patch}},
                    .item = {1, 28, 28},
                    .classes = 10,
                    .batch = 100};
  };
  const std::vector<StepCase> models = {
      digits(7),
      digits(4),
      {.name = "set", .model = {{"name", "set_transformer"}, {"dim", 128}, {"inducing", 16}}, .item = {512, 3}, .classes = 40, .batch = 64},
      {.name = "text", .model = {{"name", "text_encoder"}}, .item = {256, 16000}, .classes = 2, .batch = 32, .texts = true},
      {.name = "vit", .model = {{"name", "vit"}}, .item = {3, 224, 224}, .classes = 2, .batch = 64},
  };
  std::vector<StepCase> all;
  for (const StepCase& model : models)
    for (const int l : {1, 3}) {
      StepCase c = model;
      c.model["iterations"] = l;
      c.name = fmt::format("step {} l={}", model.name, l);
      all.push_back(c);
    }
  return all;
}

StepTiming time_training_step(const StepCase& c, const Stopwatch& time, Precision precision, bool profile) {
  const RandomItems items(c);
  const auto model = make_model(c.model, c.item, c.classes);
  Trainer trainer(*model, items, {.schedule = {.lr = 1e-4}, .batch_size = c.batch, .precision = precision, .device = time.device});
  StepTiming result{.parameters = model->parameter_count()};
  result.time = time([&] {
    if (trainer.epoch_complete()) trainer.end_epoch(0);
    result.tape_bytes = trainer.step().tape_bytes;
  });
  if (!profile) return result;
  OpTimes times(time);
  trainer.tape().set_observer(&times);
  constexpr int updates = 3;
  for (int i = 0; i < updates; ++i) {
    if (trainer.epoch_complete()) trainer.end_epoch(0);
    times.begin();
    trainer.step();
  }
  for (auto& [name, op] : times.ops) result.ops[name] = {op.forward / updates, op.backward / updates, op.calls / updates};
  return result;
}

}  // namespace sinkgrad
