// Batches are laid out as a decoder wants them: it reads the target behind the end of the sentence before, and predicts the target.
#include "datasets/translation.h"

#include <algorithm>

#include "core/file.h"
#include "datasets/text_file.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

fs::path find_text(const fs::path& folder, const std::string& prefix, const std::string& language) {
  const fs::path plain = folder / (prefix + "." + language), packed = plain.string() + ".gz";
  require<IoError>(fs::exists(plain) || fs::exists(packed), plain.string(), ": neither it nor ", packed.filename().string(),
                   " exists; parallel text is needed: one sentence per line, the same number of lines in both languages");
  return fs::exists(plain) ? plain : packed;
}

DataSplits split_sources(const std::string& name, std::shared_ptr<const TranslationText> text, const ParallelText& train, const ParallelText& valid,
                         int64_t max_length) {
  return {std::make_unique<TranslationSource>(name + " train", text, train, max_length),
          std::make_unique<TranslationSource>(name + " valid", text, valid, max_length)};
}

ParallelText number_pairs(const char* split, int64_t count, uint64_t seed) {
  ParallelText pairs;
  for (int64_t i = 0; i < count; ++i) {
    RandomStream random(seed, cat("number words/", split), static_cast<uint64_t>(i));
    constexpr std::array<uint64_t, 4> kRanges = {100, 1000, 100'000, 1'000'000};
    const auto number = static_cast<int64_t>(random.below(kRanges[random.below(kRanges.size())]));
    pairs.source.push_back(german_number(number));
    pairs.target.push_back(english_number(number));
  }
  return pairs;
}

}  // namespace

WordBudget::WordBudget(std::span<const int64_t> source_lengths, std::span<const int64_t> target_lengths, int64_t max_words, Purpose purpose,
                       uint64_t seed)
    : purpose_(purpose), seed_(seed), items_(RandomStream(seed, "pairs").permutation(static_cast<uint32_t>(source_lengths.size()))) {
  constexpr size_t kMultiple = 8;
  std::stable_sort(items_.begin(), items_.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(source_lengths[a], target_lengths[a]) < std::pair(source_lengths[b], target_lengths[b]);
  });
  const auto length = [&](size_t k) { return std::max(source_lengths[items_[k]], target_lengths[items_[k]]); };
  begins_.push_back(0);
  int64_t longest = 0;
  for (size_t k = 0; k < items_.size(); ++k) {
    require<InputError>(length(k) <= max_words, "batches by words: batch_size must be at least the longest sentence, ", length(k), " words, got ",
                        max_words);
    longest = std::max(longest, length(k));
    while (static_cast<int64_t>(k + 1 - begins_.back()) * longest > max_words) {
      const size_t pairs = k - begins_.back();
      begins_.push_back(begins_.back() + std::max(pairs / kMultiple * kMultiple, pairs % kMultiple));
      longest = 0;
      for (size_t j = begins_.back(); j <= k; ++j) longest = std::max(longest, length(j));
    }
  }
  begins_.push_back(items_.size());
  order_.resize(begins_.size() - 1);
  std::iota(order_.begin(), order_.end(), 0u);
}

std::span<const uint32_t> WordBudget::indices(uint64_t epoch, int64_t position) {
  require(position >= 0 && position < batches(), "batches by words: position must lie in 0..", batches() - 1, ", got ", position);
  if (purpose_ == Purpose::training && epoch_ != epoch) {
    order_ = RandomStream(seed_, "batch order", epoch).permutation(static_cast<uint32_t>(order_.size()));
    epoch_ = epoch;
  }
  const size_t k = order_[static_cast<size_t>(position)];
  return std::span(items_).subspan(begins_[k], begins_[k + 1] - begins_[k]);
}

TranslationSource::TranslationSource(std::string name, std::shared_ptr<const TranslationText> text, const ParallelText& pairs, int64_t max_length)
    : name_(std::move(name)), text_(std::move(text)), max_length_(max_length) {
  for (size_t i = 0; i < pairs.source.size(); ++i) {
    const std::vector<int32_t> source = text_->source(pairs.source[i]), target = text_->target(pairs.target[i]);
    if (source.size() == 1 || target.size() == 1) {
      ++empty_;
    } else if (static_cast<int64_t>(std::max(source.size(), target.size())) > max_length) {
      ++long_;
    } else {
      source_.push_back(source);
      target_.push_back(target);
    }
  }
  require<InputError>(size() > 0, name_, ": needs at least one pair of sentences, got ", empty_, " with an empty side and ", long_, " of more than ",
                      max_length, " words");
}

std::string TranslationSource::description() const {
  const auto mean = [&](const TokenRows& rows) { return static_cast<int64_t>(rows.tokens().size()) / rows.size(); };
  std::string left_out;
  if (empty_ > 0) left_out += cat(", ", empty_, " with an empty side left out");
  if (long_ > 0) left_out += cat(", ", long_, " of more than ", max_length_, " words left out");
  return cat(name_, ": ", size(), " pairs, ", mean(source_), " and ", mean(target_), " words on average, dictionaries ", text_->source_words().size(),
             " and ", text_->target_words().size(), left_out);
}

std::vector<int64_t> TranslationSource::label_histogram() const {
  std::vector<int64_t> counts(class_names().size());
  for (const int32_t word : target_.tokens()) ++counts[static_cast<size_t>(word)];
  return counts;
}

std::unique_ptr<BatchPlan> TranslationSource::plan(int64_t batch_size, Purpose purpose, uint64_t seed, bool drop_last) const {
  require<InputError>(!drop_last, name_, ": batches by words have no last partial batch to drop");
  const auto lengths = [](const TokenRows& rows) {
    std::vector<int64_t> all;
    for (int64_t i = 0; i < rows.size(); ++i) all.push_back(rows.length(i));
    return all;
  };
  return std::make_unique<WordBudget>(lengths(source_), lengths(target_), batch_size, purpose, seed);
}

Batch TranslationSource::batch(const BatchItems& items, std::optional<uint64_t>, BatchMemory& memory) const {
  const std::span<const uint32_t> indices = items.wanted;
  const auto n = static_cast<int64_t>(indices.size());
  int64_t source_longest = 0, target_longest = 0;
  for (const uint32_t i : items.all) {
    source_longest = std::max(source_longest, source_.length(i));
    target_longest = std::max(target_longest, target_.length(i));
  }
  const Batch batch{memory.inputs({3, n, source_longest}, DType::i32), memory.labels({n * target_longest}, DType::i32),
                    memory.context({3, n, target_longest}, DType::i32)};
  std::vector<int32_t> seen;
  write_tokens(batch.inputs, kLayout, [&](int64_t k) { return source_[indices[static_cast<size_t>(k)]]; });
  write_tokens(batch.context, kLayout, [&](int64_t k) {
    const auto target = target_[indices[static_cast<size_t>(k)]];
    seen.assign({Dictionary::kEnd});
    seen.insert(seen.end(), target.begin(), target.end() - 1);
    return std::span<const int32_t>(seen);
  });
  const auto labels = batch.labels.span<int32_t>();
  std::fill(labels.begin(), labels.end(), kNoLabel);
  for (int64_t k = 0; k < n; ++k) {
    const auto target = target_[indices[static_cast<size_t>(k)]];
    std::copy(target.begin(), target.end(), labels.begin() + k * target_longest);
  }
  return batch;
}

ParallelText read_parallel(const fs::path& folder, const std::string& prefix, const std::string& source, const std::string& target) {
  const fs::path source_path = find_text(folder, prefix, source), target_path = find_text(folder, prefix, target);
  ParallelText pairs{read_lines(source_path), read_lines(target_path)};
  require<InputError>(pairs.source.size() == pairs.target.size(), source_path.string(), " and ", target_path.string(),
                      ": must have the same number of lines, got ", pairs.source.size(), " and ", pairs.target.size());
  return pairs;
}

DataSplits make_translation(const nlohmann::json& options) {
  const fs::path folder = data_folder(options["folder"]);
  const auto read = [&](const char* split) { return read_parallel(folder, options[split], options["source"], options["target"]); };
  const ParallelText train = read("train"), valid = read("valid");
  Segmentation segmentation{.lower_case = options["lower_case"]};
  if (const int64_t pieces = options["subwords"]; pieces > 0) {
    std::vector<std::string> sentences;
    for (const auto* side : {&train.source, &train.target})
      for (const std::string& line : *side) sentences.push_back(segmentation.lower_case ? lower_case(line) : line);
    segmentation.model = cached_subwords(options["cache"], folder, sentences, {.vocabulary = pieces, .symbols = {}});
  }
  return split_sources("translation", std::make_shared<TranslationText>(segmentation, train, options["source_words"], options["target_words"]), train,
                       valid, options["max_length"]);
}

DataSplits make_number_words(const nlohmann::json& options) {
  const ParallelText train = number_pairs("train", options["train"], options["seed"]),
                     valid = number_pairs("valid", options["valid"], options["seed"]);
  return split_sources("number words", std::make_shared<TranslationText>(Segmentation{}, train), train, valid, options["max_length"]);
}

ItemSpec translation_items(const nlohmann::json& options) {
  const auto words = [&](const char* key) { return options[key] > 0 ? options[key].get<int64_t>() : 8000; };
  return {{options["max_length"], words("source_words")}, words("target_words")};
}

ParallelText translation_test(const std::string& data_set, const nlohmann::json& options) {
  nlohmann::json all = dataset_defaults(data_set);
  if (!options.is_null()) all.update(options);
  require<InputError>(data_set == "number_words" || data_set == "translation", "data set '", data_set, "' holds no translations");
  const ParallelText pairs = data_set == "number_words" ? number_pairs("test", all["test"], all["seed"])
                                                        : read_parallel(data_folder(all["folder"]), all["test"], all["source"], all["target"]);
  require<InputError>(!pairs.source.empty(), "data set '", data_set, "': its test set, ", all["test"], ", must hold at least one pair of sentences");
  return pairs;
}

DataDescription translation_description() {
  return {.summary = "translation: parallel text, for example IWSLT'14 German-English or Multi30k",
          .layout =
              "PREFIX.LANGUAGE or PREFIX.LANGUAGE.gz for each of the options train, valid and test and both languages\n"
              "one sentence per line, the same number of lines in both languages; raw, or tokenised and cut into parts \"@@ \"",
          .origin =
              "IWSLT'14: https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz, prepared by fairseq's prepare-iwslt14.sh\n"
              "Multi30k: https://github.com/multi30k/dataset, data/task1/raw"};
}

}  // namespace sinkgrad
