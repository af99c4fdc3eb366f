// The authors call a block's attention fn of its sublayer 0 and the MLP fn of its sublayer 1.
#include "models/vit.h"

#include <array>

namespace sinkgrad {
namespace {

const VitOptions& checked(const VitOptions& o) {
  require<InputError>(o.patch > 0 && o.height % o.patch == 0 && o.width % o.patch == 0, "vit: patches of ", o.patch, " must tile the image, got ",
                      o.height, "x", o.width);
  return o;
}

int64_t tokens(const VitOptions& o) { return o.height / o.patch * (o.width / o.patch) + 1; }

TransformerOptions encoder_options(const VitOptions& o) {
  return {
      .attention = {.dim = o.dim, .heads = o.heads, .head_dim = o.head_dim, .qkv_bias = false, .sinkhorn = o.sinkhorn},
      .mlp_dim = o.mlp_dim,
      .mlp = o.mlp,
      .activation = Activation::gelu,
      .pre_norm = true,
      .names = {.attention = "0.fn",
                .attention_norm = "0.norm",
                .mlp_in = "1.fn.net.0",
                .mlp_out = "1.fn.net.3",
                .mlp_norm = "1.norm",
                .projections = {.packed_weight = "to_qkv.weight", .output = "to_out.0"}},
  };
}

}  // namespace

Vit::Vit(const VitOptions& options)
    : patch_(checked(options).patch),
      embed_(*this, "to_patch_embedding.1", options.channels * patch_ * patch_, options.dim),
      class_token_(parameter("cls_token", {1, 1, options.dim}, Init::normal(1))),
      positions_(parameter("pos_embedding", {1, tokens(options), options.dim}, Init::normal(1))),
      encoder_(*this, "transformer", options.depth, encoder_options(options)),
      head_norm_(*this, "mlp_head.0", options.dim),
      head_(*this, "mlp_head.1", options.dim, options.classes) {}

Var Vit::logits(Var images) {
  Tape& tape = *images.tape;
  const Var patches = embed_(patchify(images, patch_));  // (B, N, dim)
  const int64_t batch = patches.shape()[0], dim = patches.shape()[2];
  const std::array parts{repeat(class_token_.on(tape), 0, batch), patches};
  const Var class_token = encoder_(add(concat(parts, 1), positions_.on(tape)), {}, 1);  // (B, 1, dim)
  return head_(head_norm_(tape.reshape(class_token, {batch, dim})));
}

}  // namespace sinkgrad
