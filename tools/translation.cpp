// Sentences of similar length are translated together, then put back in order.
#include "tools/translation.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/file.h"
#include "datasets/text_file.h"

namespace sinkgrad {
namespace {

std::map<std::string, std::string> files_beside(const std::filesystem::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const std::string& name : TranslationText::file_names())
    if (const auto path = checkpoint.parent_path() / name; std::filesystem::exists(path)) files[name] = read_file(path, uint64_t{1} << 30);
  return files;
}

}  // namespace

TranslationSystem::TranslationSystem(const std::filesystem::path& path, Device device, std::optional<int64_t> iterations) : device_(device) {
  const Checkpoint checkpoint = read_checkpoint(path);
  Recipe recipe = recipe_of(checkpoint);
  require<InputError>(recipe.model.at("name") == "translator", path.string(), ": holds a ", recipe.model.at("name"), ", a translator is needed");
  if (iterations) recipe.model["iterations"] = *iterations;
  const std::map<std::string, std::string> files = files_beside(path);
  std::string names;
  for (const std::string& name : TranslationText::file_names()) names += cat(names.empty() ? "" : ", ", name);
  require<InputError>(!files.empty(), path.string(),
                      ": a translator needs its dictionaries beside it; copy from the folder of the run that they belong to ", names,
                      ", the last one only if it is there");
  text_.emplace(files, path.parent_path());
  const auto table = checkpoint.tensors.find("model.decoder.embed_tokens.weight");
  require<InputError>(table != checkpoint.tensors.end() && table->second.shape()[0] == text_->target_words().size(), path.string(),
                      ": the dictionary beside it has ", text_->target_words().size(), " words, the model has another number");
  require<InputError>(recipe.data.contains("max_length") && recipe.data["max_length"].is_number_integer(), path.string(),
                      ": its recipe requires an integer data.max_length");
  trained_ = open_trained(checkpoint, recipe, {{recipe.data["max_length"], text_->source_words().size()}, text_->target_words().size()}, device);
}

std::vector<std::string> TranslationSystem::translate(const std::vector<std::string>& sentences, const SearchOptions& options,
                                                      const std::function<void(const std::string&)>& refuse) {
  auto& model = dynamic_cast<Translator&>(*trained_.model);
  const int64_t room = model.options().max_length;
  std::vector<std::vector<int32_t>> sources;
  std::vector<size_t> order;
  for (size_t i = 0; i < sentences.size(); ++i) {
    std::vector<int32_t>& source = sources.emplace_back();
    try {
      require_utf8(sentences[i], cat("line ", i + 1));
      source = text_->source(sentences[i]);
      require<InputError>(static_cast<int64_t>(source.size()) <= room, "line ", i + 1, ": the model reads at most ", room - 1, " words, got ",
                          source.size() - 1);
      if (source.size() > 1) order.push_back(i);
    } catch (const InputError& error) {
      if (!refuse) throw;
      refuse(error.what());
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return sources[a].size() < sources[b].size(); });

  std::vector<std::string> translations(sentences.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && static_cast<int64_t>((end + 1 - begin) * sources[order[end]].size()) <= options.batch_words) ++end;
    const auto n = static_cast<int64_t>(end - begin), longest_source = static_cast<int64_t>(sources[order[end - 1]].size());
    const Tensor planes({3, n, longest_source}, DType::i32);
    write_tokens(planes, TranslationSource::kLayout,
                 [&](int64_t k) { return std::span<const int32_t>(sources[order[begin + static_cast<size_t>(k)]]); });
    std::vector<int64_t> longest;
    for (size_t k = begin; k < end; ++k) {
      const auto words = static_cast<double>(sources[order[k]].size());
      longest.push_back(std::clamp<int64_t>(std::llround(options.longest_factor * words) + options.longest_more, 1, room - 1));
    }
    TranslatorSearch search(model, planes, options.beam, device_);
    const auto found =
        beam_search(search, longest, {.beam = options.beam, .length_penalty = options.length_penalty, .vocabulary = text_->target_words().size()});
    for (size_t k = begin; k < end; ++k)
      if (!found[k - begin].empty()) translations[order[k]] = text_->target_text(found[k - begin].front().words);
    begin = end;
  }
  return translations;
}

std::vector<BleuScore> score_translations(const TranslationText& text, const std::vector<std::string>& translations,
                                          const std::vector<std::string>& references) {
  std::vector<std::vector<std::string>> spelled(1);
  for (const std::string& reference : references) spelled[0].push_back(text.prepared() ? join_parts(reference) : reference);
  return {bleu(translations, spelled, BleuOptions::tokenised(text.prepared())), bleu(translations, spelled, BleuOptions::sacre(true))};
}

}  // namespace sinkgrad
