// The only file that knows sentencepiece; a build without it says so when subwords are first asked for.
#include "datasets/subwords.h"

#include "core/check.h"
#include "datasets/cache.h"

#ifdef SINKGRAD_HAS_SENTENCEPIECE
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <regex>
#include <unordered_map>
#endif

namespace sinkgrad {

#ifdef SINKGRAD_HAS_SENTENCEPIECE

struct Subwords::Processor : sentencepiece::SentencePieceProcessor {};

namespace {

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(std::span<const std::string> texts) : texts_(texts) {}
  bool done() const override { return texts_.empty(); }
  void Next() override { texts_ = texts_.subspan(1); }
  const std::string& value() const override { return texts_.front(); }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::span<const std::string> texts_;
};

/// What sentencepiece says of the numbers of pieces that the texts allow.
std::string limit_in(const std::string& message) {
  std::smatch number;
  if (std::regex_search(message, number, std::regex(R"(value <= (\d+))"))) return cat(": they have room for ", number[1].str());
  if (std::regex_search(message, number, std::regex(R"(required_chars\. \d+ vs (\d+))"))) return cat(": their characters need ", number[1].str());
  return "";
}

/// Calls field(number, content) for the fields of a protobuf message that have a length; false when the bytes are no message.
template <class Field>
bool each_field(std::string_view message, const Field& field) {
  const auto varint = [&](uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !message.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(message.front());
      message.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  };
  while (!message.empty()) {
    uint64_t tag = 0, length = 0;
    if (!varint(tag)) return false;
    const bool has_length = (tag & 7) == 2;
    switch (tag & 7) {
      case 0:
      case 2:
        if (!varint(length)) return false;
        if (!has_length) length = 0;
        break;
      case 1: length = 8; break;
      case 5: length = 4; break;
      default: return false;
    }
    if (length > message.size()) return false;
    if (has_length && !field(tag >> 3, message.substr(0, length))) return false;
    message.remove_prefix(length);
  }
  return true;
}

/// Whether a serialised model has an empty piece, or one with a NUL: sentencepiece ends the program over them, its trie throws where nothing may
/// be thrown. Field 1 of the model are pieces, field 1 of a piece is its text.
bool has_unusable_piece(std::string_view model) {
  bool found = false;
  each_field(model, [&](uint64_t number, std::string_view piece) {
    return number != 1 || each_field(piece, [&](uint64_t part, std::string_view text) {
             found |= part == 1 && (text.empty() || text.find('\0') != text.npos);
             return !found;
           });
  });
  return found;
}

}  // namespace

Subwords::Subwords(std::string_view model, const std::string& place) : processor_(std::make_unique<Processor>()) {
  require<InputError>(!has_unusable_piece(model), place, ": a piece of this sentencepiece model is empty or has a NUL in it");
  const auto status = processor_->LoadFromSerializedProto({model.data(), model.size()});
  require<InputError>(status.ok() && size() > 0, place, ": is no sentencepiece model");
}

std::string Subwords::train(std::span<const std::string> texts, const SubwordTraining& options) {
  require<InputError>(!texts.empty(), "subwords: training needs at least one text");
  size_t longest = 1;
  for (const std::string& text : texts) longest = std::max(longest, text.size());
  std::string symbols;
  for (const std::string& symbol : options.symbols) symbols += (symbols.empty() ? "" : ",") + symbol;
  std::unordered_map<std::string, std::string> flags = {{"model_type", "bpe"},
                                                        {"vocab_size", std::to_string(options.vocabulary)},
                                                        {"character_coverage", "1.0"},
                                                        {"normalization_rule_name", "nmt_nfkc"},
                                                        {"max_sentence_length", std::to_string(longest + 1)},
                                                        {"pad_id", "0"},
                                                        {"unk_id", "1"},
                                                        {"bos_id", "2"},
                                                        {"eos_id", "3"},
                                                        {"pad_piece", "[PAD]"},
                                                        {"unk_piece", "[UNK]"},
                                                        {"bos_piece", "[BOS]"},
                                                        {"eos_piece", "[EOS]"},
                                                        {"minloglevel", "10"}};
  if (!symbols.empty()) flags["user_defined_symbols"] = symbols;
  Sentences sentences(texts);
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(flags, &sentences, &model);
  require<InputError>(status.ok(), "subwords: ", options.vocabulary, " pieces cannot be learned from ", texts.size(), " texts",
                      limit_in(status.ToString()));
  return model;
}

int64_t Subwords::size() const { return processor_->GetPieceSize(); }

std::vector<int32_t> Subwords::encode(std::string_view text) const {
  const std::vector<int> ids = processor_->EncodeAsIds({text.data(), text.size()});
  return {ids.begin(), ids.end()};
}

std::vector<std::string> Subwords::pieces(std::string_view text) const { return processor_->EncodeAsPieces({text.data(), text.size()}); }

#else

struct Subwords::Processor {};
namespace {
[[noreturn]] void fail() { throw Error("subwords: this program was built without sentencepiece (Debian package libsentencepiece-dev)"); }
}  // namespace

Subwords::Subwords(std::string_view, const std::string&) { fail(); }
std::string Subwords::train(std::span<const std::string>, const SubwordTraining&) { fail(); }
int64_t Subwords::size() const { fail(); }
std::vector<int32_t> Subwords::encode(std::string_view) const { fail(); }
std::vector<std::string> Subwords::pieces(std::string_view) const { fail(); }

#endif

Subwords::Subwords(Subwords&&) noexcept = default;
Subwords& Subwords::operator=(Subwords&&) noexcept = default;
Subwords::~Subwords() = default;

std::string cached_subwords(const std::string& cache_folder, const std::filesystem::path& folder, std::span<const std::string> texts,
                            const SubwordTraining& options) {
  Fingerprint key;
  for (const std::string& text : texts) key.add(text);
  for (const std::string& symbol : options.symbols) key.add(symbol);
  key.add(options.vocabulary).add(SubwordTraining::kName);
  const auto train = [&](AtomicFile& file) {
    const std::string model = Subwords::train(texts, options);
    file.write(model);
    return nlohmann::json{{"content", Fingerprint().add(model).text()}};
  };
  const auto bytes = [](const CacheFile& cache) { return std::string_view(cache.data<char>().data(), cache.data<char>().size()); };
  const auto usable = [&](const CacheFile& cache) { return cache.meta().value("content", "") == Fingerprint().add(bytes(cache)).text(); };
  return std::string(bytes(*CacheFile::open_or_build(cache_path(cache_folder, folder, "subwords-" + key.text()), key.text(), train, usable)));
}

std::string Subwords::join(std::span<const std::string> pieces) {
  constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581 marks where a space was
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  for (size_t at = 0; (at = text.find(kSpace, at)) != std::string::npos; ++at) text.replace(at, kSpace.size(), " ");
  return text.starts_with(' ') ? text.substr(1) : text;
}

}  // namespace sinkgrad
