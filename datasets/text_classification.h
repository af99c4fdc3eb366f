// Texts with a class label, as token ids of different lengths. Batches are padded to their longest text, or always to the same length.
#pragma once
#include <string>
#include <vector>

#include "datasets/tokens.h"

namespace sinkgrad {

enum class TextBatches : uint8_t {
  fixed,     ///< texts in random order, every batch as long as the longest text may be: what the authors do
  shuffled,  ///< texts in random order
  bucketed,  ///< texts of similar length together: shorter batches, less padding
};

/// Batches of similar lengths. Each epoch draws a new order of the items, sorts stretches of it (50 batches) by length, cuts the batches
/// and shuffles them. Evaluation sorts all items once. Each batch but one has batch_size items.
class LengthBuckets : public BatchPlan {
 public:
  LengthBuckets(std::vector<int64_t> lengths, int64_t batch_size, Purpose purpose, uint64_t seed);
  int64_t batches() const override { return static_cast<int64_t>(order_.size()); }
  std::span<const uint32_t> indices(uint64_t epoch, int64_t position) override;

 private:
  void sort_by_length(std::span<uint32_t> items) const;
  std::vector<int64_t> lengths_;
  int64_t batch_size_;
  Purpose purpose_;
  uint64_t seed_;
  std::optional<uint64_t> epoch_;
  std::vector<uint32_t> items_, order_;  // order_: which stretch of items_ is batch k
};

class TextClassification : public DataSource {
 public:
  struct Options {
    std::string name, split;  ///< for description()
    std::vector<std::string> class_names;
    int64_t vocabulary = 0, max_length = 512;  ///< longer texts lose their end
    TextBatches batches = TextBatches::bucketed;
    TokenLayout layout = {};
  };
  /// InputError when there is no text, or a text without tokens.
  TextClassification(Options options, TokenRows texts, std::vector<int32_t> labels);

  int64_t size() const override { return texts_.size(); }
  Shape item_shape() const override { return {options_.max_length, options_.vocabulary}; }
  const std::vector<std::string>& class_names() const override { return options_.class_names; }
  std::string description() const override;
  std::vector<int64_t> label_histogram() const override;
  std::unique_ptr<BatchPlan> plan(int64_t batch_size, Purpose purpose, uint64_t seed, bool drop_last) const override;
  Batch batch(const BatchItems& items, std::optional<uint64_t> epoch, BatchMemory& memory) const override;

 private:
  int64_t length(int64_t i) const { return std::min(texts_.length(i), options_.max_length); }
  Options options_;
  TokenRows texts_;
  std::vector<int32_t> labels_;
};

}  // namespace sinkgrad
