// The words that a translation model knows, in fairseq's order: <s>, <pad>, </s>, <unk>, then by frequency, ties by spelling, and filled up
// to a multiple of 8 with madeupword0000, ... Files are fairseq's dict.txt: a word and its count on each line.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sinkgrad {

class Dictionary {
 public:
  static constexpr int32_t kStart = 0, kPadding = 1, kEnd = 2, kUnknown = 3;

  /// Counts the words of `lines` and keeps the most frequent; `most` limits the size before filling up, the four special words included
  /// (0: all).
  static Dictionary count(std::span<const std::vector<std::string>> lines, int64_t most = 0);
  /// From the text of a dict.txt. InputError naming `place` and line.
  static Dictionary parse(std::string_view text, const std::string& place);
  /// The text of a dict.txt.
  std::string text() const;

  int64_t size() const { return static_cast<int64_t>(words_.size()); }
  const std::vector<std::string>& words() const { return words_; }
  /// kUnknown for a word that is not there.
  int32_t operator[](const std::string& word) const;

 private:
  Dictionary();
  void add(const std::string& word, int64_t count);
  std::vector<std::string> words_;
  std::vector<int64_t> counts_;
  std::unordered_map<std::string, int32_t> index_;
};

}  // namespace sinkgrad
