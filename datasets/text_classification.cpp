// The plan is drawn again for each epoch from (seed, epoch) alone; the number of batches never changes.
#include "datasets/text_classification.h"

namespace sinkgrad {

LengthBuckets::LengthBuckets(std::vector<int64_t> lengths, int64_t batch_size, Purpose purpose, uint64_t seed)
    : lengths_(std::move(lengths)), batch_size_(batch_size), purpose_(purpose), seed_(seed) {
  require<InputError>(!lengths_.empty(), "length buckets: needs at least one item");
  require<InputError>(batch_size >= 1, "length buckets: the batch size must be at least 1, got ", batch_size);
  items_.resize(lengths_.size());
  std::iota(items_.begin(), items_.end(), 0u);
  order_.resize((lengths_.size() - 1) / static_cast<size_t>(batch_size) + 1);
  std::iota(order_.begin(), order_.end(), 0u);
  if (purpose == Purpose::evaluation) sort_by_length(items_);
}

void LengthBuckets::sort_by_length(std::span<uint32_t> items) const {
  std::stable_sort(items.begin(), items.end(), [&](uint32_t a, uint32_t b) { return lengths_[a] < lengths_[b]; });
}

std::span<const uint32_t> LengthBuckets::indices(uint64_t epoch, int64_t position) {
  constexpr size_t kStretch = 50;  // batches that are sorted together
  require(position >= 0 && position < batches(), "length buckets: position must lie in 0..", batches() - 1, ", got ", position);
  const auto size = static_cast<size_t>(batch_size_);
  if (purpose_ == Purpose::training && epoch_ != epoch) {
    items_ = RandomStream(seed_, "batch order", epoch).permutation(static_cast<uint32_t>(items_.size()));
    for (size_t begin = 0; begin < items_.size(); begin += kStretch * size)
      sort_by_length(std::span(items_).subspan(begin, std::min(kStretch * size, items_.size() - begin)));
    order_ = RandomStream(seed_, "order of buckets", epoch).permutation(static_cast<uint32_t>(order_.size()));
    epoch_ = epoch;
  }
  const size_t begin = order_[static_cast<size_t>(position)] * size;
  return std::span(items_).subspan(begin, std::min(size, items_.size() - begin));
}

TextClassification::TextClassification(Options options, TokenRows texts, std::vector<int32_t> labels)
    : options_(std::move(options)), texts_(std::move(texts)), labels_(std::move(labels)) {
  require<InputError>(size() > 0, options_.name, " ", options_.split, ": needs at least one text");
  require<InputError>(labels_.size() == static_cast<size_t>(size()), options_.name, ": ", size(), " texts need as many labels, got ", labels_.size());
  for (int64_t i = 0; i < size(); ++i) require<InputError>(texts_.length(i) > 0, options_.name, " ", options_.split, ": text ", i, " has no tokens");
}

std::string TextClassification::description() const {
  int64_t tokens = 0, cut = 0;
  for (int64_t i = 0; i < size(); ++i) tokens += length(i), cut += texts_.length(i) > options_.max_length;
  return cat(options_.name, " ", options_.split, ": ", size(), " texts, ", tokens / size(), " tokens on average",
             cut ? cat(" (", cut, " cut at ", options_.max_length, ")") : "", ", vocabulary ", options_.vocabulary, ", ", classes(), " classes");
}

std::vector<int64_t> TextClassification::label_histogram() const {
  std::vector<int64_t> counts(options_.class_names.size());
  for (const int32_t label : labels_) ++counts[static_cast<size_t>(label)];
  return counts;
}

std::unique_ptr<BatchPlan> TextClassification::plan(int64_t batch_size, Purpose purpose, uint64_t seed, bool drop_last) const {
  if (options_.batches != TextBatches::bucketed || drop_last) return DataSource::plan(batch_size, purpose, seed, drop_last);
  std::vector<int64_t> lengths(static_cast<size_t>(size()));
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = length(static_cast<int64_t>(i));
  return std::make_unique<LengthBuckets>(std::move(lengths), batch_size, purpose, seed);
}

Batch TextClassification::batch(const BatchItems& items, std::optional<uint64_t>, BatchMemory& memory) const {
  const std::span<const uint32_t> indices = items.wanted;
  const auto n = static_cast<int64_t>(indices.size());
  int64_t longest = options_.batches == TextBatches::fixed ? options_.max_length : 0;
  for (const uint32_t i : items.all) longest = std::max(longest, length(i));
  const Batch batch{memory.inputs({3, n, longest}, DType::i32), memory.labels({n}, DType::i32)};
  write_tokens(batch.inputs, options_.layout, [&](int64_t k) {
    const uint32_t i = indices[static_cast<size_t>(k)];
    return texts_[i].first(static_cast<size_t>(length(i)));
  });
  for (size_t k = 0; k < indices.size(); ++k) batch.labels.span<int32_t>()[k] = labels_[indices[k]];
  return batch;
}

}  // namespace sinkgrad
