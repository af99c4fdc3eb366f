// Subword units by sentencepiece: a model that is given, or one trained on the texts at hand.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinkgrad {

/// Byte-pair encoding as in the authors' IMDb model: every character covered, nmt_nfkc normalisation, [PAD] 0, [UNK] 1, [BOS] 2, [EOS] 3,
/// then `symbols`, then the merges.
struct SubwordTraining {
  /// Names the settings above in caches.
  static constexpr const char* kName = "bpe, nmt_nfkc, every character";
  int64_t vocabulary = 16000;
  std::vector<std::string> symbols = {"[SEP]", "[CLS]", "[MASK]"};
};

/// The bytes of a sentencepiece model trained on `texts` (see Subwords::train), kept in a cache file of the data in `folder` (see cache_path).
std::string cached_subwords(const std::string& cache_folder, const std::filesystem::path& folder, std::span<const std::string> texts,
                            const SubwordTraining& options);

class Subwords {
 public:
  static constexpr int32_t kPadding = 0, kUnknown = 1;  ///< of a trained model

  /// From the bytes of a .model file. InputError beginning with `place` when they are none.
  Subwords(std::string_view model, const std::string& place);
  Subwords(Subwords&&) noexcept;
  Subwords& operator=(Subwords&&) noexcept;
  ~Subwords();
  /// The bytes of a model trained on `texts`. InputError when the texts allow no such vocabulary, with the number they do.
  static std::string train(std::span<const std::string> texts, const SubwordTraining& options);

  int64_t size() const;
  /// Safe to call from several threads.
  std::vector<int32_t> encode(std::string_view text) const;
  std::vector<std::string> pieces(std::string_view text) const;
  /// Text from pieces: the inverse of pieces() up to normalisation.
  static std::string join(std::span<const std::string> pieces);

 private:
  struct Processor;
  std::unique_ptr<Processor> processor_;
};

}  // namespace sinkgrad
