// Either way a sentence becomes a list of words, which the dictionaries number: pieces of sentencepiece are words here.
#include "datasets/translation_text.h"

#include <nlohmann/json.hpp>

#include "core/check.h"
#include "datasets/text_file.h"

namespace sinkgrad {
namespace {

constexpr const char *kSource = "dictionary.source.txt", *kTarget = "dictionary.target.txt", *kSubwords = "subwords.model",
                     *kSegmentation = "segmentation.json";

std::optional<Subwords> open_subwords(const std::string& model, const std::string& place) {
  if (model.empty()) return std::nullopt;
  return Subwords(model, place);
}

}  // namespace

std::string join_parts(std::string_view line) {
  constexpr std::string_view kMark = "@@ ";
  std::string out;
  for (size_t end; (end = line.find(kMark)) != line.npos; line.remove_prefix(end + kMark.size())) out += line.substr(0, end);
  out += line.ends_with("@@") ? line.substr(0, line.size() - 2) : line;
  return out;
}

TranslationText::TranslationText(const Segmentation& segmentation, const ParallelText& training, int64_t most_source, int64_t most_target)
    : segmentation_(segmentation), subwords_(open_subwords(segmentation.model, kSubwords)) {
  const auto dictionary = [&](const std::vector<std::string>& sentences, int64_t most) {
    std::vector<std::vector<std::string>> lines;
    for (const std::string& sentence : sentences) lines.push_back(cut(sentence));
    return Dictionary::count(lines, most);
  };
  source_ = dictionary(training.source, most_source);
  target_ = dictionary(training.target, most_target);
}

TranslationText::TranslationText(const std::map<std::string, std::string>& files, const std::filesystem::path& folder) {
  const auto path = [&](const char* name) { return (folder / name).string(); };
  const auto file = [&](const char* name) -> const std::string& {
    const auto found = files.find(name);
    require<InputError>(found != files.end(), path(name), ": is missing; a translator needs it beside its checkpoint");
    return found->second;
  };
  bool has_subwords = false;
  try {
    const nlohmann::json segmentation = nlohmann::json::parse(file(kSegmentation));
    segmentation_.lower_case = segmentation.at("lower_case").get<bool>();
    has_subwords = segmentation.at("subwords").get<bool>();
  } catch (const nlohmann::json::exception&) {
    throw InputError(cat(path(kSegmentation), ": must be {\"lower_case\": true or false, \"subwords\": true or false}"));
  }
  if (has_subwords) segmentation_.model = file(kSubwords);
  subwords_ = open_subwords(segmentation_.model, path(kSubwords));
  source_ = Dictionary::parse(file(kSource), path(kSource));
  target_ = Dictionary::parse(file(kTarget), path(kTarget));
}

std::map<std::string, std::string> TranslationText::files() const {
  std::map<std::string, std::string> files = {
      {kSource, source_->text()},
      {kTarget, target_->text()},
      {kSegmentation, nlohmann::json{{"lower_case", segmentation_.lower_case}, {"subwords", subwords_.has_value()}}.dump() + "\n"}};
  if (subwords_) files[kSubwords] = segmentation_.model;
  return files;
}

const std::vector<std::string>& TranslationText::file_names() {
  static const std::vector<std::string> names = {kSource, kTarget, kSegmentation, kSubwords};
  return names;
}

std::vector<std::string> TranslationText::cut(const std::string& sentence) const {
  const std::string text = segmentation_.lower_case ? lower_case(sentence) : sentence;
  if (subwords_) return subwords_->pieces(text);
  const auto words = split_words(text);
  return {words.begin(), words.end()};
}

std::vector<int32_t> TranslationText::numbers(const Dictionary& dictionary, const std::string& sentence) const {
  std::vector<int32_t> all;
  for (const std::string& word : cut(sentence)) all.push_back(dictionary[word]);
  all.push_back(Dictionary::kEnd);
  return all;
}

std::string TranslationText::target_text(std::span<const int32_t> words) const {
  std::vector<std::string> spelled;
  for (const int32_t word : words) spelled.push_back(target_->words().at(static_cast<size_t>(word)));
  return subwords_ ? Subwords::join(spelled) : join_parts(join_words(spelled));
}

}  // namespace sinkgrad
