// Words are bytes: UTF-8 sorts as its characters do.
#include "datasets/dictionary.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "core/check.h"
#include "core/names.h"
#include "datasets/text_file.h"

namespace sinkgrad {
namespace {

constexpr size_t kMultiple = 8;

std::string filler(size_t k) {
  const std::string digits = std::to_string(k);
  return "madeupword" + std::string(digits.size() < 4 ? 4 - digits.size() : 0, '0') + digits;
}

}  // namespace

Dictionary::Dictionary() {
  for (const char* special : {"<s>", "<pad>", "</s>", "<unk>"}) add(special, 1);
}

void Dictionary::add(const std::string& word, int64_t count) {
  index_.emplace(word, static_cast<int32_t>(words_.size()));
  words_.push_back(word);
  counts_.push_back(count);
}

Dictionary Dictionary::count(std::span<const std::vector<std::string>> lines, int64_t most) {
  std::map<std::string, int64_t> counts;  // by spelling
  for (const auto& line : lines)
    for (const std::string& word : line) ++counts[word];
  Dictionary dictionary;
  for (const std::string& special : dictionary.words_) counts.erase(special);
  std::vector<std::pair<std::string, int64_t>> order(counts.begin(), counts.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [word, number] : order) {
    if (most > 0 && dictionary.size() >= most) break;
    dictionary.add(word, number);
  }
  for (size_t k = 0; dictionary.words_.size() % kMultiple != 0; ++k) dictionary.add(filler(k), 0);
  return dictionary;
}

Dictionary Dictionary::parse(std::string_view text, const std::string& place) {
  Dictionary dictionary;
  const std::vector<std::string> lines = lines_of(text);
  for (size_t i = 0; i < lines.size(); ++i) {
    require_utf8(lines[i], cat(place, ": line ", i + 1));
    const size_t space = lines[i].rfind(' ');
    int64_t count = -1;
    if (space != std::string::npos) {
      const char *begin = lines[i].data() + space + 1, *end = lines[i].data() + lines[i].size();
      if (const auto parsed = std::from_chars(begin, end, count); parsed.ec != std::errc() || parsed.ptr != end) count = -1;
    }
    require<InputError>(space != std::string::npos && space > 0 && count >= 0, place, ": line ", i + 1, ": must be a word and its count, got '",
                        printable(lines[i]), "'");
    const std::string word = lines[i].substr(0, space);
    require<InputError>(!dictionary.index_.contains(word), place, ": line ", i + 1, ": '", printable(word), "' is there twice");
    dictionary.add(word, count);
  }
  return dictionary;
}

std::string Dictionary::text() const {
  std::string out;
  for (size_t i = 4; i < words_.size(); ++i) out += words_[i] + " " + std::to_string(counts_[i]) + "\n";
  return out;
}

int32_t Dictionary::operator[](const std::string& word) const {
  const auto found = index_.find(word);
  return found == index_.end() ? kUnknown : found->second;
}

}  // namespace sinkgrad
