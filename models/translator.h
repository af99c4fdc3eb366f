// The encoder-decoder transformer of machine translation in fairseq's form (transformer_iwslt_de_en, SPEC 2.4): post-norm, sinusoidal positions,
// output projection tied to the decoder's embedding. Only the encoder's self-attention may be Sinkhorn: the decoder's is causal.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "models/beam_search.h"
#include "nn/classifier.h"
#include "nn/transformer.h"

namespace sinkgrad {

struct TranslatorOptions {
  int64_t source_words = 0, target_words = 0;  ///< sizes of the dictionaries
  int64_t max_length = 1024;                   ///< longest sentence, its end included
  int64_t dim = 512, mlp_dim = 1024;
  int encoder_layers = 6, decoder_layers = 6, heads = 4;
  double dropout = 0.3;
  SinkhornOptions sinkhorn = {};  ///< of the encoder's self-attention
  DType dtype = DType::f32;       ///< of the position table
};

/// Parameters carry fairseq's names. Token planes have fairseq's numbers: padding 1, positions from 2.
class Translator : public Model {
 public:
  static constexpr int32_t kPadding = 1, kEnd = 2, kFirstPosition = 2;

  explicit Translator(const TranslatorOptions& options);
  /// Source planes (3, B, S) and the target's words so far, first the end of a sentence, (3, B, T) -> (B T, target words).
  Var scores(Var source, Var target) override;
  std::vector<AttentionHeads*> attentions() override { return encoder_.attentions(); }
  const TranslatorOptions& options() const { return options_; }

 private:
  friend class TranslatorSearch;
  /// Embedded words (B, N, dim) times sqrt(dim), plus positions i32 (B, N), with dropout.
  Var embed(Var words, const Dropout& dropout, Var positions) const;
  Var encode(Var planes, Var& is_padding);
  /// (..., dim) -> (rows, target words)
  Var project(Var x) const;
  Var causal(Tape& tape, int64_t length);

  TranslatorOptions options_;
  Tensor positions_;                  // (max_length + 2, dim), constant
  std::map<int64_t, Tensor> causal_;  // masks by length
  Embedding source_words_;
  Dropout source_dropout_;
  Encoder encoder_;
  Parameter& target_table_;
  Dropout target_dropout_;
  Decoder decoder_;
};

/// Next words for beam search: the encoder runs once, each step adds one position to the keys and values kept from the steps before.
class TranslatorSearch : public NextWords {
 public:
  /// Source planes i32 (3, B, S) on the host. `beam` rows belong to each sentence. The model must outlive the search and lie on `device`.
  TranslatorSearch(Translator& model, const Tensor& source, int64_t beam, Device device);
  std::vector<double> advance(std::span<const int32_t> parents, std::span<const int32_t> words) override;

 private:
  Translator* model_;
  Tensor source_;  // as long as the tapes point to it
  int64_t rows_, length_ = 0;
  Tape encoder_tape_, tapes_[2];  // a step reads keys and values from the tape of the step before it
  Var is_padding_;
  std::vector<KeyValues> memory_, past_;
};

}  // namespace sinkgrad
