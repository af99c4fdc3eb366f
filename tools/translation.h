// A trained translator at work: checkpoint and the files beside it, from sentences to sentences.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "datasets/bleu.h"
#include "datasets/translation.h"
#include "models/translator.h"
#include "tools/experiment.h"

namespace sinkgrad {

struct SearchOptions {
  int64_t beam = 5;
  double length_penalty = 1;
  double longest_factor = 1.2;  ///< a translation has at most factor * (words of the source) + longest_more words
  int64_t longest_more = 10;
  int64_t batch_words = 2000;  ///< source words per batch; results do not depend on it, up to rounding
};

class TranslationSystem {
 public:
  /// InputError when the checkpoint holds no translator or the files beside it do not fit. `iterations` replaces the half-steps that the
  /// checkpoint was trained with.
  TranslationSystem(const std::filesystem::path& checkpoint, Device device, std::optional<int64_t> iterations = {});
  /// One translation per sentence; an empty one for an empty sentence. A sentence that is no UTF-8 or too long is an InputError that names its
  /// line; with `refuse`, which then hears the message, it has an empty translation and the others are translated all the same.
  std::vector<std::string> translate(const std::vector<std::string>& sentences, const SearchOptions& options,
                                     const std::function<void(const std::string& message)>& refuse = {});
  const TranslationText& text() const { return *text_; }

 private:
  Device device_;
  std::optional<TranslationText> text_;
  TrainedModel trained_;
};

/// Both scores of translations: the paper's (tokenised, in small letters) first, then sacreBLEU's. The references are those of the test set, as the
/// files have them.
std::vector<BleuScore> score_translations(const TranslationText& text, const std::vector<std::string>& translations,
                                          const std::vector<std::string>& references);

}  // namespace sinkgrad
