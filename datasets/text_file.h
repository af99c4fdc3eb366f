// Text as people store it: UTF-8, lines ended by \n alone (a \r before it is dropped), plain or gzip. Errors name file and line.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sinkgrad {

/// The lines of a text. Only \n ends a line: U+2028, U+0085 and form feeds belong to it. A last line without \n counts, a byte-order
/// mark at the beginning does not.
std::vector<std::string> lines_of(std::string_view text);
/// The lines of a file that may be compressed. InputError naming the line that is not UTF-8; IoError when the file cannot be read.
std::vector<std::string> read_lines(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{4} << 30);
/// InputError `<place>: must be UTF-8, ...` with the offset of the first byte that is not.
void require_utf8(std::string_view text, const std::string& place);

/// The words between runs of U+0020; no other character separates.
std::vector<std::string_view> split_words(std::string_view line);
std::string join_words(const std::vector<std::string>& words);
/// Without spaces, tabs and line ends at both ends.
std::string_view strip(std::string_view text);
/// Small letters for capital ones: Latin, Greek and Cyrillic. Other characters, and bytes that are not UTF-8, stay.
std::string lower_case(std::string_view text);

}  // namespace sinkgrad
