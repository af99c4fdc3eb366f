// Beam search with a length penalty, as fairseq does it; it knows nothing of the model but the next word's log probabilities.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace sinkgrad {

/// A model that continues several partial sentences, one per row, by one word at a time.
class NextWords {
 public:
  virtual ~NextWords() = default;
  /// Row i becomes what row parents[i] was, with words[i] appended; in the first call nothing was, and the words open the sentences.
  /// Returns the log probabilities of the words after that, (rows, vocabulary).
  virtual std::vector<double> advance(std::span<const int32_t> parents, std::span<const int32_t> words) = 0;
};

struct BeamOptions {
  int64_t beam = 5;           ///< partial sentences that are followed, and finished ones that are wanted
  double length_penalty = 1;  ///< score = log probability / length^penalty, the end of the sentence counted
  int64_t vocabulary = 0;
  int32_t padding = 1, end = 2;  ///< padding is never chosen; the end opens and closes sentences
};

struct Hypothesis {
  std::vector<int32_t> words;  ///< without the end
  double score = 0;
};

/// The best finished sentences of each of longest.size() inputs, best first; `longest[i]` (at least 1) limits the words of input i. Rows
/// i beam .. (i+1) beam - 1 belong to input i. Each step keeps the 2 beam best continuations: those among the first `beam` that end a sentence
/// are finished, the best `beam` others go on. An input is done when it has `beam` finished sentences. Sentences have at least one word.
std::vector<std::vector<Hypothesis>> beam_search(NextWords& model, std::span<const int64_t> longest, const BeamOptions& options);

}  // namespace sinkgrad
