// A missing folder is an empty one: the caller knows what to say.
#include "datasets/folders.h"

#include <algorithm>
#include <cctype>

namespace sinkgrad {
namespace {

/// Text and number of "airplane_0012" or "61"; a name without a final number has -1.
std::pair<std::string, int64_t> text_and_number(const std::filesystem::path& file) {
  const std::string stem = file.stem();
  size_t digits = 0;
  while (digits < stem.size() && digits < 18 && std::isdigit(static_cast<unsigned char>(stem[stem.size() - 1 - digits]))) ++digits;
  const size_t text = stem.size() - digits;
  return {stem.substr(0, text), digits == 0 ? -1 : std::stoll(stem.substr(text))};
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

std::vector<std::filesystem::path> files_by_number(const std::filesystem::path& folder, const std::string& suffix) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; it != end; it.increment(error))
    if (lower(it->path().filename()).ends_with(suffix) && it->is_regular_file()) files.push_back(it->path());
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return std::pair(text_and_number(a), a.string()) < std::pair(text_and_number(b), b.string()); });
  return files;
}

std::vector<std::string> subfolders(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; it != end; it.increment(error))
    if (it->is_directory()) names.push_back(it->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace sinkgrad
