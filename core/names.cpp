// Edit distance by one row of dynamic programming.
#include "core/names.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace sinkgrad {

std::string printable(std::string_view text) {
  constexpr size_t kLongest = 80;
  const bool cut = text.size() > kLongest;
  if (cut) {
    text = text.substr(0, kLongest);
    while (!text.empty() && (text.back() & 0x80) != 0) text.remove_suffix(1);  // perhaps half a character of UTF-8
  }
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F)
      out += c;
    else
      out += {'\\', 'x', "0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  }
  return cut ? out + "..." : out;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kBeginning = 3;  // shorter ones say too little
  std::string nearest;
  size_t least = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(name.size(), candidate.size()), shorter = std::min(name.size(), candidate.size());
    if (2 * (longer - shorter) > longer && !candidate.starts_with(name)) continue;  // far apart whatever the letters; names in files can be long
    const size_t distance = edit_distance(name, candidate);
    const bool alike = 2 * distance <= longer || (name.size() >= kBeginning && candidate.starts_with(name));
    if (alike && distance < least) least = distance, nearest = candidate;
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? std::string() : "; did you mean '" + nearest + "'?";
}

std::string what_there_is(std::string_view name, const std::vector<std::string>& candidates) {
  std::string hint = did_you_mean(name, candidates);
  if (!hint.empty()) return hint;
  for (const std::string& candidate : candidates) hint += (hint.empty() ? "; there are '" : ", '") + candidate + "'";
  return hint;
}

}  // namespace sinkgrad
