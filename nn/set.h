// Attention blocks for sets (Lee et al., "Set Transformer", 2019) in the form of the authors' released models: the residual of a block
// is its projected query and there is no output projection. Masks (B, N) mark the padding of a set; nonzero excludes.
#pragma once
#include <optional>
#include <string>

#include "nn/attention.h"

namespace sinkgrad {

struct SetOptions {
  int64_t dim = 256;  ///< width of queries, keys, values and outputs
  int heads = 4;
  bool layer_norm = true;
  bool scale_by_model_width = false;  ///< scores times 1/sqrt(dim) instead of 1/sqrt(dim / heads), as in the released code
  SinkhornOptions sinkhorn = {};      ///< the released code also sets rows_sum_to_inverse_count
};

/// (B, N, query_dim), (B, M, key_dim) -> (B, N, dim): O = Q + A V, O = ln0(O), O = O + relu(fc_o(O)), ln1(O).
class Mab : public Module {
 public:
  Mab(Module& parent, const std::string& name, int64_t query_dim, int64_t key_dim, const SetOptions& options);
  Var operator()(Var queries, Var keys, const AttentionMasks& masks = {});

  AttentionHeads heads;

 private:
  Linear query_, key_, value_, output_;
  std::optional<LayerNorm> norm0_, norm1_;
};

/// Self-attention of a set: mab(X, X).
class Sab : public Module {
 public:
  Sab(Module& parent, const std::string& name, int64_t in, const SetOptions& options) : Module(parent, name), mab(*this, "mab", in, in, options) {}
  Var operator()(Var x, Var is_padding = {}) { return mab(x, x, {.key_is_padding = is_padding, .query_is_padding = is_padding}); }

  Mab mab;
};

/// Self-attention through m inducing points I: H = mab0(I, X), mab1(X, H). Cost linear in the size of the set.
class Isab : public Module {
 public:
  Isab(Module& parent, const std::string& name, int64_t in, int64_t inducing, const SetOptions& options);
  Var operator()(Var x, Var is_padding = {});

 private:
  Parameter& inducing_;

 public:
  Mab mab0, mab1;
};

/// Pooling: mab(S, X) with `seeds` learned queries S. (B, N, dim) -> (B, seeds, dim).
class Pma : public Module {
 public:
  Pma(Module& parent, const std::string& name, int64_t seeds, const SetOptions& options);
  Var operator()(Var x, Var is_padding = {});

 private:
  Parameter& seeds_;

 public:
  Mab mab;
};

}  // namespace sinkgrad
