// Pairs of sentences for training a translator: batches of similar lengths that hold so many words, as fairseq makes them.
// Data sets "translation" (files in two languages) and "number_words" (made up).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "datasets/registry.h"
#include "datasets/tokens.h"
#include "datasets/translation_text.h"

namespace sinkgrad {

/// Batches with (number of pairs) x (longest sentence of either language) <= max_words, of a multiple of 8 pairs or fewer than 8. The batches
/// are fixed by the seed: a random order, sorted by target length, then by source length, cut greedily. Training shuffles them each epoch.
class WordBudget : public BatchPlan {
 public:
  /// InputError when a pair exceeds the budget.
  WordBudget(std::span<const int64_t> source_lengths, std::span<const int64_t> target_lengths, int64_t max_words, Purpose purpose, uint64_t seed);
  int64_t batches() const override { return static_cast<int64_t>(order_.size()); }
  std::span<const uint32_t> indices(uint64_t epoch, int64_t position) override;

 private:
  Purpose purpose_;
  uint64_t seed_;
  std::optional<uint64_t> epoch_;
  std::vector<uint32_t> items_, order_;
  std::vector<size_t> begins_;  // of batch k in items_, and one past the last
};

/// Batch sizes count words: see WordBudget. The labels are the target's words, one row each; padding counts nowhere.
class TranslationSource : public DataSource {
 public:
  static constexpr TokenLayout kLayout = {.padding = Dictionary::kPadding, .first_position = 2, .padding_position = Dictionary::kPadding};

  /// Pairs with an empty side or more than max_length words (the end included) are left out and counted. InputError when none is left.
  TranslationSource(std::string name, std::shared_ptr<const TranslationText> text, const ParallelText& pairs, int64_t max_length);

  int64_t size() const override { return source_.size(); }
  /// (longest, source words)
  Shape item_shape() const override { return {max_length_, text_->source_words().size()}; }
  /// The words of the target.
  const std::vector<std::string>& class_names() const override { return text_->target_words().words(); }
  std::string description() const override;
  std::vector<int64_t> label_histogram() const override;
  std::unique_ptr<BatchPlan> plan(int64_t batch_size, Purpose purpose, uint64_t seed, bool drop_last) const override;
  Batch batch(const BatchItems& items, std::optional<uint64_t> epoch, BatchMemory& memory) const override;
  std::map<std::string, std::string> files() const override { return text_->files(); }

 private:
  std::string name_;
  std::shared_ptr<const TranslationText> text_;
  int64_t max_length_, empty_ = 0, long_ = 0;
  TokenRows source_, target_;
};

/// Reads PREFIX.LANGUAGE or PREFIX.LANGUAGE.gz for both languages. InputError naming both files when they differ in their number of lines, or
/// a line that is not UTF-8; IoError when a file is missing.
ParallelText read_parallel(const std::filesystem::path& folder, const std::string& prefix, const std::string& source, const std::string& target);

/// Options of data sets "translation" and "number_words", see datasets/registry.h.
DataSplits make_translation(const nlohmann::json& options);
DataSplits make_number_words(const nlohmann::json& options);
ItemSpec translation_items(const nlohmann::json& options);
DataDescription translation_description();
/// The sentences that the finished model is scored on; InputError for a data set that holds no translations.
ParallelText translation_test(const std::string& data_set, const nlohmann::json& options);

/// "drei@@ und@@ zwanzig" and "twenty@@ -@@ three", for 0 .. 999999.
std::string german_number(int64_t number);
std::string english_number(int64_t number);

}  // namespace sinkgrad
