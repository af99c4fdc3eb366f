// Rows whose input is done go on with any word, so that the model always sees the same number of rows.
#include "models/beam_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/check.h"

namespace sinkgrad {
namespace {

struct Candidate {
  double score;  // sum of log probabilities
  int64_t row;
  int32_t word;
  /// Best first; of equal ones the earlier row and the smaller word.
  bool operator<(const Candidate& other) const {
    return score != other.score ? score > other.score : row != other.row ? row < other.row : word < other.word;
  }
};

struct Row {
  std::vector<int32_t> words;
  double score = 0;
};

class Input {
 public:
  Input(int64_t first_row, int64_t longest, const BeamOptions& options) : first_row_(first_row), longest_(longest), o_(&options), rows_(1) {}
  bool done() const { return done_; }

  /// One step: from the log probabilities of this input's rows (beam, vocabulary), fills its parents and words of the next one.
  void step(const double* log_probabilities, int32_t* parents, int32_t* words) {
    const std::vector<Candidate> best = candidates(log_probabilities);
    std::vector<Row> next;
    const auto length = static_cast<int64_t>(rows_[0].words.size()) + 1;
    for (size_t rank = 0; rank < best.size(); ++rank) {
      const Candidate& c = best[rank];
      const Row& from = rows_[static_cast<size_t>(c.row)];
      if (c.word == o_->end) {
        if (static_cast<int64_t>(rank) < o_->beam && static_cast<int64_t>(finished_.size()) < o_->beam)
          finished_.push_back({from.words, c.score / std::pow(static_cast<double>(length), o_->length_penalty)});
      } else if (static_cast<int64_t>(next.size()) < o_->beam) {
        parents[next.size()] = static_cast<int32_t>(first_row_ + c.row);
        words[next.size()] = c.word;
        next.push_back({from.words, c.score});
        next.back().words.push_back(c.word);
      }
    }
    done_ = next.empty() || static_cast<int64_t>(finished_.size()) == o_->beam;
    rows_ = std::move(next);
  }

  std::vector<Hypothesis> take() {
    std::stable_sort(finished_.begin(), finished_.end(), [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
    return std::move(finished_);
  }

 private:
  /// The 2 beam best continuations, best first. `best` is a heap whose first element is the worst.
  std::vector<Candidate> candidates(const double* log_probabilities) const {
    const auto wanted = static_cast<size_t>(2 * o_->beam);
    const auto length = static_cast<int64_t>(rows_[0].words.size());
    std::vector<Candidate> best;
    for (int64_t row = 0; row < static_cast<int64_t>(rows_.size()); ++row)
      for (int32_t word = 0; word < o_->vocabulary; ++word) {
        const bool ends = word == o_->end;
        if (word == o_->padding || (ends && length == 0) || (!ends && length == longest_)) continue;
        const double log_probability = log_probabilities[row * o_->vocabulary + word];
        require(!std::isnan(log_probability), "beam search: the log probability of word ", word, " is not a number");
        const Candidate c{rows_[static_cast<size_t>(row)].score + log_probability, row, word};
        if (best.size() == wanted && !(c < best.front())) continue;
        if (best.size() == wanted) {
          std::pop_heap(best.begin(), best.end());
          best.pop_back();
        }
        best.push_back(c);
        std::push_heap(best.begin(), best.end());
      }
    std::sort_heap(best.begin(), best.end());
    return best;
  }

  int64_t first_row_, longest_;
  const BeamOptions* o_;
  std::vector<Row> rows_;  // that go on; at first one, empty
  std::vector<Hypothesis> finished_;
  bool done_ = false;
};

}  // namespace

std::vector<std::vector<Hypothesis>> beam_search(NextWords& model, std::span<const int64_t> longest, const BeamOptions& options) {
  require<InputError>(options.beam >= 1 && options.vocabulary > options.end, "beam search: needs a beam of at least 1 and a vocabulary beyond ",
                      options.end, ", got ", options.beam, " and ", options.vocabulary);
  const auto rows = longest.size() * static_cast<size_t>(options.beam);
  std::vector<Input> inputs;
  for (size_t i = 0; i < longest.size(); ++i) {
    require<InputError>(longest[i] >= 1, "beam search: sentences need room for at least one word, got ", longest[i]);
    inputs.emplace_back(static_cast<int64_t>(i) * options.beam, longest[i], options);
  }
  std::vector<int32_t> parents(rows), words(rows, options.end);
  std::iota(parents.begin(), parents.end(), 0);
  while (std::any_of(inputs.begin(), inputs.end(), [](const Input& input) { return !input.done(); })) {
    const std::vector<double> log_probabilities = model.advance(parents, words);
    std::iota(parents.begin(), parents.end(), 0);
    std::fill(words.begin(), words.end(), options.end);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const size_t first = i * static_cast<size_t>(options.beam);
      if (!inputs[i].done()) inputs[i].step(&log_probabilities[first * static_cast<size_t>(options.vocabulary)], &parents[first], &words[first]);
    }
  }
  std::vector<std::vector<Hypothesis>> found;
  for (Input& input : inputs) found.push_back(input.take());
  return found;
}

}  // namespace sinkgrad
