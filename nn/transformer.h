// Encoder and decoder layers and stacks, pre or post norm, and the two usual tables of sinusoidal positions.
// Names are arguments, so that checkpoints of torch, fairseq and the authors' models load without renaming.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/attention.h"

namespace sinkgrad {

enum class Activation { relu, gelu };
/// `unused`: its parameters exist and are never applied, as in the authors' attention-only ViT.
enum class MlpUse { none, unused, used };

/// What the parts of a layer are called.
struct LayerNames {
  std::string attention, attention_norm;
  std::string cross_attention = {}, cross_norm = {};  // decoder layers only
  std::string mlp_in, mlp_out, mlp_norm;
  AttentionNames projections;

  static LayerNames torch_encoder();
  static LayerNames torch_decoder();
  static LayerNames fairseq();
};

struct TransformerOptions {
  AttentionOptions attention;  ///< of encoder layers and of the decoder's cross-attention; the decoder's self-attention is softmax
  int64_t mlp_dim = 0;
  MlpUse mlp = MlpUse::used;
  Activation activation = Activation::relu;
  bool pre_norm = false;
  bool final_norm = false;  ///< of the stack, called "norm"
  double dropout = 0;       ///< on the output of each sublayer
  double norm_epsilon = 1e-5;
  LayerNames names = LayerNames::torch_encoder();
};

/// Residual, norm and dropout around a sublayer f. Pre-norm: x + drop(f(norm(x))); post-norm: norm(x + drop(f(x))). Where f gives the first
/// tokens only, so does the residual.
class Residual {
 public:
  Residual(Module& parent, const std::string& norm_name, const TransformerOptions& options)
      : norm_(parent, norm_name, options.attention.dim, options.norm_epsilon),
        dropout_(parent, norm_name + ".dropout", options.dropout),
        pre_norm_(options.pre_norm) {}
  template <class F>
  Var operator()(Var x, F&& f) {
    const Var y = dropout_(f(pre_norm_ ? norm_(x) : x)), sum = add(first_tokens(x, y.shape()[1]), y);
    return pre_norm_ ? sum : norm_(sum);
  }

 private:
  LayerNorm norm_;
  Dropout dropout_;
  bool pre_norm_;
};

/// Two Linear layers with an activation between, and their residual.
class MlpSublayer {
 public:
  MlpSublayer(Module& parent, const TransformerOptions& options);
  Var operator()(Var x);

 private:
  Residual residual_;
  Linear in_, out_;
  Activation activation_;
};

class EncoderLayer : public Module {
 public:
  EncoderLayer(Module& parent, const std::string& name, const TransformerOptions& options);
  /// (B, N, dim) -> (B, N, dim), or the first `wanted` tokens of it.
  Var operator()(Var x, const AttentionMasks& masks = {}, int64_t wanted = kAllTokens);
  MultiHeadAttention& attention() { return attention_; }

 private:
  Residual residual_;
  MultiHeadAttention attention_;
  std::optional<MlpSublayer> mlp_;
  bool mlp_used_;
};

class DecoderLayer : public Module {
 public:
  DecoderLayer(Module& parent, const std::string& name, const TransformerOptions& options);
  /// (B, N, dim) and the encoder's (B, M, dim) -> (B, N, dim). `masks` are for the self-attention: give it a causal pair mask.
  Var operator()(Var x, Var memory, const AttentionMasks& masks, const AttentionMasks& memory_masks = {});
  /// One position further: x (R, 1, dim) are the newest positions of R rows, R / B of them for each row of the memory (B, M). `past` holds the
  /// keys and values of the positions before (null Vars: none) and then also those of x.
  Var step(Var x, KeyValues& past, const KeyValues& memory, const AttentionMasks& memory_masks);
  KeyValues project(Var memory) const { return cross_attention_.project(memory); }

 private:
  Residual self_residual_;
  MultiHeadAttention self_attention_;
  Residual cross_residual_;
  MultiHeadAttention cross_attention_;
  MlpSublayer mlp_;
};

/// `depth` layers called "layers.0", "layers.1", ...; `name` may be empty.
class Encoder : public Module {
 public:
  Encoder(Module& parent, const std::string& name, int depth, const TransformerOptions& options);
  /// (B, N, dim) -> (B, N, dim), or the first `wanted` tokens of it: the last layer then does without the rest of its work.
  Var operator()(Var x, const AttentionMasks& masks = {}, int64_t wanted = kAllTokens);
  std::vector<AttentionHeads*> attentions();

 private:
  std::vector<std::unique_ptr<EncoderLayer>> layers_;
  std::optional<LayerNorm> norm_;
};

class Decoder : public Module {
 public:
  Decoder(Module& parent, const std::string& name, int depth, const TransformerOptions& options);
  Var operator()(Var x, Var memory, const AttentionMasks& masks, const AttentionMasks& memory_masks = {});
  /// The same for one position at a time: see DecoderLayer::step. `past` and `memory` have an entry for each layer.
  Var step(Var x, std::span<KeyValues> past, std::span<const KeyValues> memory, const AttentionMasks& memory_masks = {});
  /// The encoder's output as each layer reads it.
  std::vector<KeyValues> project(Var memory) const;

 private:
  std::vector<std::unique_ptr<DecoderLayer>> layers_;
  std::optional<LayerNorm> norm_;
};

/// (count, dim): sin at even, cos at odd dimensions, frequency 10000^(-2 floor(i/2) / dim) (Vaswani et al. 2017).
Tensor sinusoid_interleaved(int64_t count, int64_t dim, DType dtype = DType::f32);
/// (count, dim): [sin | cos], frequencies 10000^(-k / (dim/2 - 1)), row `padding` zero (fairseq, tensor2tensor). An odd last dimension is zero.
Tensor sinusoid_halves(int64_t count, int64_t dim, int64_t padding, DType dtype = DType::f32);

}  // namespace sinkgrad
