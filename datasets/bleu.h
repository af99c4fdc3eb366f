// BLEU (Papineni et al. 2002) of whole corpora, in the two forms that papers report: on tokenised text without smoothing, and sacreBLEU's.
// Which one it is, the signature says.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinkgrad {

struct BleuOptions {
  bool tokenize_13a = false;    ///< mteval-v13a's tokens, as in sacreBLEU; otherwise the words between spaces
  bool lower_case = false;      ///< both sides
  bool smooth_exp = false;      ///< an order without a match counts as 1/2, 1/4, ... of a match, as in sacreBLEU
  bool unknown_matches = true;  ///< otherwise a reference's "<unk>" matches nothing, as in fairseq

  /// The paper's: tokenised, in small letters, 4-gram, no smoothing.
  static BleuOptions tokenised(bool already_tokenised) { return {.tokenize_13a = !already_tokenised, .lower_case = true, .unknown_matches = false}; }
  static BleuOptions sacre(bool lower_case) { return {.tokenize_13a = true, .lower_case = lower_case, .smooth_exp = true}; }
};

struct BleuScore {
  double bleu = 0;  ///< 0 .. 100
  double brevity = 1;
  std::array<double, 4> precisions = {};  ///< in percent, smoothed
  std::array<int64_t, 4> matches = {}, ngrams = {};
  int64_t length = 0, reference_length = 0;
  std::string signature;
  /// "BLEU = 34.43, 68.1/42.3/28.2/19.1 (BP=0.970, ratio=0.971, length=..., reference=...) signature".
  std::string text() const;
};

/// `references[k][i]` is a reference of sentence i; with several, matches are clipped by the one that has most and the closest length counts, of two
/// equally close ones the shorter. InputError when the numbers of lines differ or there is none.
BleuScore bleu(std::span<const std::string> sentences, std::span<const std::vector<std::string>> references, const BleuOptions& options);

/// mteval-v13a: entities decoded, punctuation apart, but not within numbers; words between single spaces.
std::string tokenize_13a(std::string_view line);

}  // namespace sinkgrad
