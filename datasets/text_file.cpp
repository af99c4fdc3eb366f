// Byte-wise: UTF-8 never has \n or U+0020 inside a character.
#include "datasets/text_file.h"

#include "core/check.h"
#include "datasets/gzip.h"

namespace sinkgrad {
namespace {

/// Length in bytes of the well-formed character that `text` begins with (Unicode, table 3-7); 0 when there is none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto follows = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) { return byte(i) >= low && byte(i) <= high; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned low = first == 0xE0 ? 0xA0 : 0x80, high = first == 0xED ? 0x9F : 0xBF;  // no overlong forms, no surrogates
    return follows(1, low, high) && follows(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned low = first == 0xF0 ? 0x90 : 0x80, high = first == 0xF4 ? 0x8F : 0xBF;
    return follows(1, low, high) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

uint32_t lower(uint32_t c) {
  if ((c >= 'A' && c <= 'Z') || (c >= 0xC0 && c <= 0xDE && c != 0xD7)) return c + 32;
  if (c >= 0x100 && c <= 0x137 && c != 0x130) return c | 1;                          // pairs, the capital one even
  if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17E)) return c + (c & 1);  // pairs, the capital one odd
  if (c >= 0x14A && c <= 0x177) return c | 1;
  if (c == 0x178) return 0xFF;
  if (c == 0x1E9E) return 0xDF;  // capital sharp s
  if (c >= 0x391 && c <= 0x3A9 && c != 0x3A2) return c + 32;
  if (c >= 0x410 && c <= 0x42F) return c + 32;
  if (c >= 0x400 && c <= 0x40F) return c + 80;
  return c;
}

}  // namespace

std::vector<std::string> lines_of(std::string_view text) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(line);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return lines;
}

std::vector<std::string> read_lines(const std::filesystem::path& path, uint64_t max_bytes) {
  std::vector<std::string> lines = lines_of(read_maybe_gzip(path, max_bytes));
  for (size_t i = 0; i < lines.size(); ++i) require_utf8(lines[i], cat(path.string(), ": line ", i + 1));
  return lines;
}

void require_utf8(std::string_view text, const std::string& place) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = character_length(text.substr(i));
    require<InputError>(length > 0, place, ": must be UTF-8, got byte ", static_cast<int>(static_cast<unsigned char>(text[i])), " at offset ", i);
    i += length;
  }
}

std::vector<std::string_view> split_words(std::string_view line) {
  std::vector<std::string_view> words;
  while (true) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const size_t end = std::min(line.find(' '), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

std::string join_words(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

std::string_view strip(std::string_view text) {
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

std::string lower_case(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = std::max<size_t>(1, character_length(text.substr(i)));
    const auto byte = [&](size_t k) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i + k])); };
    const uint32_t c = length == 1   ? byte(0)
                       : length == 2 ? (byte(0) & 31) << 6 | (byte(1) & 63)
                                     : (byte(0) & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
    const uint32_t small = length > 3 || (length == 1 && c >= 0x80) ? c : lower(c);
    if (small == c) {
      out += text.substr(i, length);
    } else if (small < 0x80) {
      out += static_cast<char>(small);
    } else {  // every small letter above lies below U+0800
      out += static_cast<char>(0xC0 | small >> 6);
      out += static_cast<char>(0x80 | (small & 63));
    }
    i += length;
  }
  return out;
}

}  // namespace sinkgrad
