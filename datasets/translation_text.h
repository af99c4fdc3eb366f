// From sentences to the numbers of a translation model and back: how a sentence is cut into words, and the dictionaries of both languages.
// It is stored beside a trained model, so that translating needs no training data.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datasets/dictionary.h"
#include "datasets/subwords.h"

namespace sinkgrad {

/// Two texts with as many lines; line i of one translates line i of the other.
struct ParallelText {
  std::vector<std::string> source, target;
};

/// `prepared` text holds words between spaces, parts of a word marked by "@@ " (subword-nmt). Otherwise sentences are cut by a sentencepiece
/// model of both languages.
struct Segmentation {
  std::string model = {};  ///< sentencepiece's bytes; empty: the text is prepared
  bool lower_case = false;
};

class TranslationText {
 public:
  /// Dictionaries from the training text; most_source and most_target as in Dictionary::count.
  TranslationText(const Segmentation& segmentation, const ParallelText& training, int64_t most_source = 0, int64_t most_target = 0);
  /// The files that files() made, which lie in `folder`. InputError naming the one that is missing or malformed.
  TranslationText(const std::map<std::string, std::string>& files, const std::filesystem::path& folder);
  std::map<std::string, std::string> files() const;
  /// Their names.
  static const std::vector<std::string>& file_names();

  /// Words and the end of the sentence.
  std::vector<int32_t> source(const std::string& sentence) const { return numbers(*source_, sentence); }
  std::vector<int32_t> target(const std::string& sentence) const { return numbers(*target_, sentence); }
  /// The sentence that words (without the end) spell, parts of words joined.
  std::string target_text(std::span<const int32_t> words) const;
  /// Words and their parts stand between spaces, as somebody else's tools made them.
  bool prepared() const { return !subwords_; }

  const Dictionary& source_words() const { return *source_; }
  const Dictionary& target_words() const { return *target_; }

 private:
  std::vector<std::string> cut(const std::string& sentence) const;
  std::vector<int32_t> numbers(const Dictionary& dictionary, const std::string& sentence) const;
  Segmentation segmentation_;
  std::optional<Subwords> subwords_;
  std::optional<Dictionary> source_, target_;
};

/// "lower@@ case" -> "lowercase": removes "@@ " and a last "@@".
std::string join_parts(std::string_view line);

}  // namespace sinkgrad
