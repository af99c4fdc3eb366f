// What the trainer knows of data: a Dataset fills rows of a batch, a BatchLoader decides which rows and in what order.
// An item depends on (dataset, index) alone, plus the epoch when it is augmented, so a resumed run sees the same bits.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/rng.h"
#include "core/tensor.h"

namespace sinkgrad {

/// Items of one shape, each with a class label.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// Number of items; never 0.
  virtual int64_t size() const = 0;
  virtual Shape item_shape() const = 0;
  /// One name per label 0 .. classes-1.
  virtual const std::vector<std::string>& class_names() const = 0;
  /// One line for people: name, split, sizes.
  virtual std::string description() const = 0;
  /// Writes items `indices` to inputs (n, item_shape) and labels (n). `epoch` is that of training; without it (evaluation) nothing is augmented.
  virtual void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const = 0;
  /// Number of items of each class.
  virtual std::vector<int64_t> label_histogram() const = 0;
  int64_t classes() const { return static_cast<int64_t>(class_names().size()); }
};

/// Training: a new order each epoch, augmented. Evaluation: every item in the order of the dataset, as it is.
enum class Purpose : uint8_t { training, evaluation };

/// Which items are in which batch: a pure function of (seed, epoch, position).
class BatchOrder {
 public:
  /// The last batch holds the items that are left over; drop_last leaves them out. No batch at all is an error.
  BatchOrder(int64_t items, int64_t batch_size, Purpose purpose, uint64_t seed = 0, bool drop_last = false)
      : batch_size_(batch_size), purpose_(purpose), seed_(seed) {
    require<InputError>(items >= 1 && items <= std::numeric_limits<uint32_t>::max(), "batch order: needs 1 to 4294967295 items, got ", items);
    require<InputError>(batch_size >= 1, "batch order: the batch size must be at least 1, got ", batch_size);
    batches_ = drop_last ? items / batch_size : (items - 1) / batch_size + 1;
    require<InputError>(batches_ > 0, "batch order: drop_last leaves no batch, got ", items, " items in batches of ", batch_size);
    order_.resize(static_cast<size_t>(items));
    std::iota(order_.begin(), order_.end(), 0u);
  }
  /// Batches per epoch.
  int64_t batches() const { return batches_; }
  /// Items of batch `position` (0 .. batches-1); valid until the next call.
  std::span<const uint32_t> indices(uint64_t epoch, int64_t position) {
    require(position >= 0 && position < batches_, "batch order: position must lie in 0..", batches_ - 1, ", got ", position);
    if (purpose_ == Purpose::training && epoch_ != epoch) {
      order_ = RandomStream(seed_, "batch order", epoch).permutation(static_cast<uint32_t>(order_.size()));
      epoch_ = epoch;
    }
    const auto begin = static_cast<size_t>(position * batch_size_);
    return std::span(order_).subspan(begin, std::min(static_cast<size_t>(batch_size_), order_.size() - begin));
  }

 private:
  int64_t batch_size_, batches_ = 0;
  Purpose purpose_;
  uint64_t seed_;
  std::optional<uint64_t> epoch_;  // of order_
  std::vector<uint32_t> order_;
};

/// Inputs f32 (size, item_shape) and labels i32 (size).
struct Batch {
  Tensor inputs, labels;
  int64_t size() const { return labels.shape()[0]; }
};

/// Fills one pair of tensors again and again: every full batch has the same addresses. The dataset must outlive the loader.
class BatchLoader {
 public:
  BatchLoader(const Dataset& dataset, int64_t batch_size, Purpose purpose, uint64_t seed = 0, bool drop_last = false)
      : dataset_(&dataset), purpose_(purpose), order_(dataset.size(), batch_size, purpose, seed, drop_last) {
    const int64_t rows = std::min(batch_size, dataset.size());
    Shape shape{rows};
    const Shape item = dataset.item_shape();
    for (int i = 0; i < item.rank(); ++i) shape.push_back(item[i]);
    inputs_ = Tensor(shape);
    labels_ = Tensor(Shape{rows}, DType::i32);
  }
  /// Batches per epoch.
  int64_t batches() const { return order_.batches(); }
  int64_t classes() const { return dataset_->classes(); }
  /// Batch `position` (0 .. batches-1) of `epoch`; valid until another one is loaded. The last one of an epoch may have fewer rows.
  Batch load(uint64_t epoch, int64_t position) {
    const bool ready = ready_ == std::pair(epoch, position);
    ready_.reset();
    const std::span<const uint32_t> indices = order_.indices(epoch, position);
    const auto n = static_cast<int64_t>(indices.size());
    const Batch batch{inputs_.rows(0, n), labels_.rows(0, n)};
    if (!ready)
      dataset_->load(indices, purpose_ == Purpose::training ? std::optional(epoch) : std::nullopt, batch.inputs.span<float>().data(),
                     batch.labels.span<int32_t>().data());
    return batch;
  }
  /// Loads a batch early, for the next call of load(): time to spend while a GPU works.
  void prefetch(uint64_t epoch, int64_t position) {
    load(epoch, position);
    ready_ = std::pair(epoch, position);
  }

 private:
  const Dataset* dataset_;
  Purpose purpose_;
  BatchOrder order_;
  std::optional<std::pair<uint64_t, int64_t>> ready_;  // epoch and position of the batch that was loaded early
  Tensor inputs_, labels_;
};

}  // namespace sinkgrad
