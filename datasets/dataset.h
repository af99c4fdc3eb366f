// What the trainer knows of data: a DataSource makes batches, of the items and in the order that its BatchPlan says; a BatchLoader holds their
// memory. An item depends on (source, index) alone, plus the epoch when it is augmented, so a resumed run sees the same bits.
#pragma once
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/background.h"
#include "core/rng.h"
#include "core/tensor.h"

namespace sinkgrad {

/// Training: a new order each epoch, augmented. Evaluation: every item in the order of the dataset, as it is.
enum class Purpose : uint8_t { training, evaluation };

/// Which items are in which batch: a pure function of (seed, epoch, position).
class BatchPlan {
 public:
  virtual ~BatchPlan() = default;
  /// Batches per epoch, the same number in each.
  virtual int64_t batches() const = 0;
  /// Items of batch `position` (0 .. batches-1); valid until the next call.
  virtual std::span<const uint32_t> indices(uint64_t epoch, int64_t position) = 0;
};

/// Batches of one size from a random order of all items, or from their own order.
class BatchOrder : public BatchPlan {
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
  int64_t batches() const override { return batches_; }
  std::span<const uint32_t> indices(uint64_t epoch, int64_t position) override {
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

/// The label of a row of scores that counts nowhere, neither in the loss nor in the accuracy.
inline constexpr int32_t kNoLabel = -100;

/// The items of a batch, and which of them are made where several processes share it. Shapes that depend on the items, such as the longest
/// text, are those of the whole batch.
struct BatchItems {
  std::span<const uint32_t> all, wanted;  ///< indices; `wanted` is a stretch of `all`
  template <class Indices>
  requires std::convertible_to<Indices, std::span<const uint32_t>> BatchItems(const Indices& indices) : all(indices), wanted(all) {}
  BatchItems(std::span<const uint32_t> indices, size_t begin, size_t end) : all(indices), wanted(all.subspan(begin, end - begin)) {}
};

/// Which of `count` nearly equal parts of each batch a process takes.
struct BatchPart {
  int64_t index = 0, count = 1;
  /// Its items: end excluded. Parts of a batch with fewer items than there are parts may be empty.
  size_t begin(size_t items) const { return items * static_cast<size_t>(index) / static_cast<size_t>(count); }
  size_t end(size_t items) const { return items * static_cast<size_t>(index + 1) / static_cast<size_t>(count); }
};

/// One batch, or a part of it, in host memory. A part without items has no tensors.
struct Batch {
  Tensor inputs;                 ///< f32 (n, item_shape), or tokens i32 (3, n, longest): see datasets/tokens.h
  Tensor labels;                 ///< i32 (rows), one for each row of scores; kNoLabel counts nowhere
  Tensor context = {};           ///< a second input where the model needs one: what a decoder has seen, i32 (3, n, longest)
  int64_t first = 0, items = 0;  ///< set by BatchLoader: the place of its first item in the whole batch, and how many it has
  /// Labels that count: items, or the words of translations.
  int64_t size() const {
    if (!labels) return 0;
    const auto all = labels.span<int32_t>();
    return labels.count() - std::count(all.begin(), all.end(), kNoLabel);
  }
};

/// Memory for one tensor after another; it grows to the largest, and tensors of one shape have one address.
class TensorMemory {
 public:
  Tensor operator()(const Shape& shape, DType dtype) {
    if (!memory_ || memory_.dtype() != dtype || memory_.count() < shape.count()) memory_ = Tensor({shape.count()}, dtype);
    return memory_.first(shape);
  }

 private:
  Tensor memory_;
};
struct BatchMemory {
  TensorMemory inputs, labels, context;
};

/// Labelled items, in batches.
class DataSource {
 public:
  virtual ~DataSource() = default;
  /// Number of items; never 0.
  virtual int64_t size() const = 0;
  /// Images (C, H, W), sets of points (N, D), texts (longest, vocabulary): tokens stand for one-hot rows.
  virtual Shape item_shape() const = 0;
  /// One name per label 0 .. classes-1.
  virtual const std::vector<std::string>& class_names() const = 0;
  /// One line for people: name, split, sizes.
  virtual std::string description() const = 0;
  /// Number of items of each class.
  virtual std::vector<int64_t> label_histogram() const = 0;
  int64_t classes() const { return static_cast<int64_t>(class_names().size()); }
  /// What a trained model needs beside its weights to be used on new items: file names and bytes, kept with the checkpoints.
  virtual std::map<std::string, std::string> files() const { return {}; }

  /// `batch_size` counts items unless the source says otherwise.
  virtual std::unique_ptr<BatchPlan> plan(int64_t batch_size, Purpose purpose, uint64_t seed = 0, bool drop_last = false) const {
    return std::make_unique<BatchOrder>(size(), batch_size, purpose, seed, drop_last);
  }
  /// The wanted items, laid out in `memory`; threads may call it at the same time, each with its own. `epoch` is that of training; without it
  /// (evaluation) nothing is augmented.
  virtual Batch batch(const BatchItems& items, std::optional<uint64_t> epoch, BatchMemory& memory) const = 0;
};

/// Items of one shape, each with a class label.
class Dataset : public DataSource {
 public:
  /// Writes items `indices` to inputs (n, item_shape) and labels (n); see batch().
  virtual void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const = 0;
  Batch batch(const BatchItems& items, std::optional<uint64_t> epoch, BatchMemory& memory) const override {
    Shape shape{static_cast<int64_t>(items.wanted.size())};
    const Shape item = item_shape();
    for (int i = 0; i < item.rank(); ++i) shape.push_back(item[i]);
    const Batch batch{memory.inputs(shape, DType::f32), memory.labels({shape[0]}, DType::i32)};
    load(items.wanted, epoch, batch.inputs.span<float>().data(), batch.labels.span<int32_t>().data());
    return batch;
  }
};

/// Makes batches in the same memory again and again. The source must outlive the loader.
class BatchLoader {
 public:
  /// `threads` of them load a batch ahead: one where the steps themselves need the CPU. Of each batch it makes a part.
  BatchLoader(const DataSource& source, int64_t batch_size, Purpose purpose, uint64_t seed = 0, bool drop_last = false, int threads = 1,
              const BatchPart& part = {})
      : source_(&source), purpose_(purpose), part_(part), plan_(source.plan(batch_size, purpose, seed, drop_last)), worker_(threads) {}
  /// Batches per epoch.
  int64_t batches() const { return plan_->batches(); }
  int64_t classes() const { return source_->classes(); }
  /// Batch `position` (0 .. batches-1) of `epoch`; valid until another one is loaded.
  const Batch& load(uint64_t epoch, int64_t position) {
    const bool ready = ahead_ == std::pair(epoch, position);
    if (ahead_) ahead_.reset(), worker_.wait();
    if (ready)  // where the batch before lay: the steps find each tensor at one address
      batch_ = {copied(next_.inputs, memory_.inputs), copied(next_.labels, memory_.labels), copied(next_.context, memory_.context), next_.first,
                next_.items};
    else
      batch_ = make(plan_->indices(epoch, position), epoch, memory_);
    return batch_;
  }
  /// Makes a batch for a later call of load() on a thread of its own, and returns at once. The batch at hand stays valid.
  void prefetch(uint64_t epoch, int64_t position) {
    if (ahead_) ahead_.reset(), worker_.wait();
    const std::span<const uint32_t> indices = plan_->indices(epoch, position);
    next_indices_.assign(indices.begin(), indices.end());
    next_epoch_ = epoch;
    ahead_ = std::pair(epoch, position);
    worker_.start([this] { next_ = make(next_indices_, next_epoch_, next_memory_); });
  }

 private:
  Batch make(std::span<const uint32_t> indices, uint64_t epoch, BatchMemory& memory) const {
    const size_t begin = part_.begin(indices.size()), end = part_.end(indices.size());
    Batch batch;
    if (begin < end) batch = source_->batch({indices, begin, end}, purpose_ == Purpose::training ? std::optional(epoch) : std::nullopt, memory);
    batch.first = static_cast<int64_t>(begin);
    batch.items = static_cast<int64_t>(end - begin);
    return batch;
  }
  static Tensor copied(const Tensor& from, TensorMemory& memory) {
    if (!from) return {};
    Tensor to = memory(from.shape(), from.dtype());
    to.copy_from(from);
    return to;
  }

  const DataSource* source_;
  Purpose purpose_;
  BatchPart part_;
  std::unique_ptr<BatchPlan> plan_;
  BatchMemory memory_, next_memory_;
  Batch batch_, next_;
  std::optional<std::pair<uint64_t, int64_t>> ahead_;  // epoch and position of the batch that the worker makes or has made
  std::vector<uint32_t> next_indices_;                 // what the worker reads
  uint64_t next_epoch_ = 0;
  BackgroundWorker worker_;  // last: it ends before what its job reads
};

}  // namespace sinkgrad
