// Layers and stacks are a residual around an attention and a residual around an MLP; everything else is names.
#include "nn/transformer.h"

#include <array>
#include <cmath>

namespace sinkgrad {
namespace {

/// The decoder's self-attention is causal, and no doubly stochastic matrix is causal but the identity.
AttentionOptions softmax_only(AttentionOptions options) {
  options.sinkhorn = {};
  return options;
}

template <class F>
Tensor position_table(int64_t count, int64_t dim, DType dtype, F&& entry) {
  Tensor table({count, dim}, dtype);
  dispatch(dtype, [&]<class T>() {
    for (int64_t p = 0; p < count; ++p)
      for (int64_t i = 0; i < dim; ++i) table.span<T>()[static_cast<size_t>(p * dim + i)] = static_cast<T>(entry(static_cast<double>(p), i));
  });
  return table;
}

std::string layer_name(int i) { return cat("layers.", i); }

}  // namespace

LayerNames LayerNames::torch_encoder() {
  return {.attention = "self_attn",
          .attention_norm = "norm1",
          .mlp_in = "linear1",
          .mlp_out = "linear2",
          .mlp_norm = "norm2",
          .projections = AttentionNames::torch()};
}

LayerNames LayerNames::torch_decoder() {
  return {.attention = "self_attn",
          .attention_norm = "norm1",
          .cross_attention = "multihead_attn",
          .cross_norm = "norm2",
          .mlp_in = "linear1",
          .mlp_out = "linear2",
          .mlp_norm = "norm3",
          .projections = AttentionNames::torch()};
}

LayerNames LayerNames::fairseq() {
  return {.attention = "self_attn",
          .attention_norm = "self_attn_layer_norm",
          .cross_attention = "encoder_attn",
          .cross_norm = "encoder_attn_layer_norm",
          .mlp_in = "fc1",
          .mlp_out = "fc2",
          .mlp_norm = "final_layer_norm",
          .projections = AttentionNames::fairseq()};
}

MlpSublayer::MlpSublayer(Module& parent, const TransformerOptions& options)
    : residual_(parent, options.names.mlp_norm, options),
      in_(parent, options.names.mlp_in, options.attention.dim, options.mlp_dim),
      out_(parent, options.names.mlp_out, options.mlp_dim, options.attention.dim),
      activation_(options.activation) {}

Var MlpSublayer::operator()(Var x) {
  return residual_(x, [&](Var y) {
    const Var hidden = in_(y);
    return out_(activation_ == Activation::relu ? relu(hidden) : gelu(hidden));
  });
}

EncoderLayer::EncoderLayer(Module& parent, const std::string& name, const TransformerOptions& options)
    : Module(parent, name),
      residual_(*this, options.names.attention_norm, options),
      attention_(*this, options.names.attention, options.attention, options.names.projections),
      mlp_used_(options.mlp == MlpUse::used) {
  if (options.mlp != MlpUse::none) mlp_.emplace(*this, options);
}

Var EncoderLayer::operator()(Var x, const AttentionMasks& masks, int64_t wanted) {
  const Var y = residual_(x, [&](Var z) { return attention_(z, z, masks, wanted); });
  return mlp_used_ ? (*mlp_)(y) : y;
}

DecoderLayer::DecoderLayer(Module& parent, const std::string& name, const TransformerOptions& options)
    : Module(parent, name),
      self_residual_(*this, options.names.attention_norm, options),
      self_attention_(*this, options.names.attention, softmax_only(options.attention), options.names.projections),
      cross_residual_(*this, options.names.cross_norm, options),
      cross_attention_(*this, options.names.cross_attention, options.attention, options.names.projections),
      mlp_(*this, options) {}

Var DecoderLayer::operator()(Var x, Var memory, const AttentionMasks& masks, const AttentionMasks& memory_masks) {
  x = self_residual_(x, [&](Var y) { return self_attention_(y, y, masks); });
  x = cross_residual_(x, [&](Var y) { return cross_attention_(y, memory, memory_masks); });
  return mlp_(x);
}

Var DecoderLayer::step(Var x, KeyValues& past, const KeyValues& memory, const AttentionMasks& memory_masks) {
  x = self_residual_(x, [&](Var y) {
    const KeyValues newest = self_attention_.project(y);
    const auto append = [](Var before, Var after) { return before ? concat(std::array{before, after}, 1) : after; };
    past = {append(past.keys, newest.keys), append(past.values, newest.values)};
    return self_attention_(y, past);
  });
  x = cross_residual_(x, [&](Var y) {  // the rows of one sentence are queries to the same memory
    const int64_t rows = y.shape()[0], sentences = memory.keys.shape()[0], dim = y.shape()[2];
    const Var grouped = y.tape->reshape(y, {sentences, rows / sentences, dim});
    return y.tape->reshape(cross_attention_(grouped, memory, memory_masks), {rows, 1, dim});
  });
  return mlp_(x);
}

Encoder::Encoder(Module& parent, const std::string& name, int depth, const TransformerOptions& options) : Module(parent, name) {
  for (int i = 0; i < depth; ++i) layers_.push_back(std::make_unique<EncoderLayer>(*this, layer_name(i), options));
  if (options.final_norm) norm_.emplace(*this, "norm", options.attention.dim, options.norm_epsilon);
}

Var Encoder::operator()(Var x, const AttentionMasks& masks, int64_t wanted) {
  for (const auto& layer : layers_) x = (*layer)(x, masks, layer == layers_.back() ? wanted : kAllTokens);
  x = first_tokens(x, wanted);  // where there is no layer
  return norm_ ? (*norm_)(x) : x;
}

std::vector<AttentionHeads*> Encoder::attentions() {
  std::vector<AttentionHeads*> all;
  for (const auto& layer : layers_) all.push_back(&layer->attention().heads);
  return all;
}

Decoder::Decoder(Module& parent, const std::string& name, int depth, const TransformerOptions& options) : Module(parent, name) {
  for (int i = 0; i < depth; ++i) layers_.push_back(std::make_unique<DecoderLayer>(*this, layer_name(i), options));
  if (options.final_norm) norm_.emplace(*this, "norm", options.attention.dim, options.norm_epsilon);
}

Var Decoder::operator()(Var x, Var memory, const AttentionMasks& masks, const AttentionMasks& memory_masks) {
  for (const auto& layer : layers_) x = (*layer)(x, memory, masks, memory_masks);
  return norm_ ? (*norm_)(x) : x;
}

Var Decoder::step(Var x, std::span<KeyValues> past, std::span<const KeyValues> memory, const AttentionMasks& memory_masks) {
  for (size_t i = 0; i < layers_.size(); ++i) x = layers_[i]->step(x, past[i], memory[i], memory_masks);
  return norm_ ? (*norm_)(x) : x;
}

std::vector<KeyValues> Decoder::project(Var memory) const {
  std::vector<KeyValues> all;
  for (const auto& layer : layers_) all.push_back(layer->project(memory));
  return all;
}

Tensor sinusoid_interleaved(int64_t count, int64_t dim, DType dtype) {
  return position_table(count, dim, dtype, [&](double p, int64_t i) {
    const double angle = p * std::pow(1e4, -static_cast<double>(i - i % 2) / static_cast<double>(dim));
    return i % 2 == 0 ? std::sin(angle) : std::cos(angle);
  });
}

Tensor sinusoid_halves(int64_t count, int64_t dim, int64_t padding, DType dtype) {
  const int64_t half = dim / 2;
  require(half > 1, "sinusoid_halves: the width must be at least 4, got ", dim);
  return position_table(count, dim, dtype, [&](double p, int64_t i) {
    if (static_cast<int64_t>(p) == padding || i >= 2 * half) return 0.0;
    const double angle = p * std::pow(1e4, -static_cast<double>(i % half) / static_cast<double>(half - 1));
    return i < half ? std::sin(angle) : std::cos(angle);
  });
}

}  // namespace sinkgrad
