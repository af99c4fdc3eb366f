// fairseq pads sources on the left and multiplies padded embeddings by 0; masks that exclude make both immaterial here.
#include "models/translator.h"

#include <cmath>

#include "nn/token_inputs.h"

namespace sinkgrad {
namespace {

TransformerOptions layer_options(const TranslatorOptions& o, const SinkhornOptions& sinkhorn) {
  return {.attention = {.dim = o.dim, .heads = o.heads, .init = InitScheme::fairseq, .sinkhorn = sinkhorn},
          .mlp_dim = o.mlp_dim,
          .dropout = o.dropout,
          .names = LayerNames::fairseq()};
}

Init word_init(const TranslatorOptions& o) {
  Init init = Init::normal(1 / std::sqrt(static_cast<double>(o.dim)));
  init.zero_row = Translator::kPadding;
  return init;
}

}  // namespace

Translator::Translator(const TranslatorOptions& o)
    : options_(o),
      positions_(sinusoid_halves(o.max_length + Translator::kFirstPosition, o.dim, kPadding, o.dtype)),
      source_words_(*this, "encoder.embed_tokens", o.source_words, o.dim, word_init(o)),
      source_dropout_(*this, "encoder.dropout", o.dropout),
      encoder_(*this, "encoder", o.encoder_layers, layer_options(o, o.sinkhorn)),
      target_table_(parameter("decoder.embed_tokens.weight", {o.target_words, o.dim}, word_init(o))),
      target_dropout_(*this, "decoder.dropout", o.dropout),
      decoder_(*this, "decoder", o.decoder_layers, layer_options(o, {})) {}

Var Translator::embed(Var words, const Dropout& dropout, Var positions) const {
  Tape& tape = *words.tape;
  return dropout(add(scale_shift(words, std::sqrt(static_cast<double>(options_.dim)), 0), embedding(positions, tape.leaf(positions_))));
}

Var Translator::encode(Var planes, Var& is_padding) {
  const TokenInputs in(planes);
  is_padding = in.is_padding;
  const Var x = embed(source_words_(in.tokens), source_dropout_, in.positions);
  return encoder_(x, {.key_is_padding = in.is_padding, .query_is_padding = in.is_padding});
}

Var Translator::project(Var x) const {
  const int64_t dim = options_.dim;
  return linear(x.tape->reshape(x, {x.shape().count() / dim, dim}), target_table_.on(*x.tape));
}

Var Translator::causal(Tape& tape, int64_t length) {
  Tensor& mask = causal_[length];
  if (!mask) mask = causal_mask(length);
  return tape.leaf(mask);
}

Var Translator::scores(Var source, Var target) {
  Tape& tape = *source.tape;
  Var is_padding;
  const Var memory = encode(source, is_padding);
  // Padding on the right is seen by padding alone, and its labels do not count: the causal mask is enough.
  const TokenInputs in(target);
  const Var x = embed(embedding(in.tokens, target_table_.on(tape)), target_dropout_, in.positions);
  const Var decoded = decoder_(x, memory, {.pair_is_hidden = causal(tape, x.shape()[1])}, {.key_is_padding = is_padding});
  return project(decoded);
}

TranslatorSearch::TranslatorSearch(Translator& model, const Tensor& source, int64_t beam, Device device)
    : model_(&model),
      source_(source),
      rows_(source.shape()[1] * beam),
      encoder_tape_(DType::f32, device),
      tapes_{Tape(DType::f32, device), Tape(DType::f32, device)} {
  for (Tape* tape : {&encoder_tape_, &tapes_[0], &tapes_[1]}) {
    tape->set_training(false);
    tape->set_recording(false);
  }
  memory_ = model.decoder_.project(model.encode(encoder_tape_.leaf(source_), is_padding_));
  past_.resize(memory_.size());
}

std::vector<double> TranslatorSearch::advance(std::span<const int32_t> parents, std::span<const int32_t> words) {
  require(parents.size() == static_cast<size_t>(rows_) && words.size() == parents.size(), "translator search: needs ", rows_,
          " parents and words, got ", parents.size(), " and ", words.size());
  require(length_ < model_->options().max_length, "translator: sentences have at most ", model_->options().max_length, " words");
  Tape &before = tapes_[length_ % 2], &tape = tapes_[(length_ + 1) % 2];
  tape.reset();
  const Tensor tokens = Tensor::of<int32_t>({rows_, 1}, words);
  const Tensor chosen = Tensor::of<int32_t>({rows_}, parents);
  const std::vector<int32_t> position(static_cast<size_t>(rows_), static_cast<int32_t>(length_) + Translator::kFirstPosition);
  const Tensor positions = Tensor::of<int32_t>({rows_, 1}, std::span(position));

  const Var parent_rows = tape.leaf(chosen);
  const auto here = [&](const Tape& from, Var x) { return tape.leaf(from.value(x)); };
  std::vector<KeyValues> memory;
  for (size_t i = 0; i < memory_.size(); ++i) {
    memory.push_back({here(encoder_tape_, memory_[i].keys), here(encoder_tape_, memory_[i].values)});
    if (length_ > 0) past_[i] = {gather_rows(here(before, past_[i].keys), parent_rows), gather_rows(here(before, past_[i].values), parent_rows)};
  }
  const Var x = model_->embed(embedding(tape.leaf(tokens), model_->target_table_.on(tape)), model_->target_dropout_, tape.leaf(positions));
  const Var decoded = model_->decoder_.step(x, past_, memory, {.key_is_padding = here(encoder_tape_, is_padding_)});
  ++length_;
  return to_doubles(tape.value(log_softmax(model_->project(decoded))), tape.device());
}

}  // namespace sinkgrad
