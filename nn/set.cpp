// The blocks of the Set Transformer.
#include "nn/set.h"

#include <cmath>

namespace sinkgrad {
namespace {

/// torch's xavier_uniform_ of a (1, rows, dim) tensor: fan_in is rows dim, fan_out dim.
Init xavier_of_rows(int64_t rows, int64_t dim) { return Init::xavier_uniform(rows * dim, dim); }

/// (1, rows, dim) -> (B, rows, dim) for the batch of x.
Var learned_rows(Parameter& rows, Var x) { return repeat(rows.on(*x.tape), 0, x.shape()[0]); }

}  // namespace

Mab::Mab(Module& parent, const std::string& name, int64_t query_dim, int64_t key_dim, const SetOptions& options)
    : Module(parent, name),
      heads{.count = options.heads, .sinkhorn = options.sinkhorn},
      query_(*this, "fc_q", query_dim, options.dim),
      key_(*this, "fc_k", key_dim, options.dim),
      value_(*this, "fc_v", key_dim, options.dim),
      output_(*this, "fc_o", options.dim, options.dim) {
  require(options.heads > 0 && options.dim % options.heads == 0, "set: ", options.heads, " heads must divide width ", options.dim);
  heads.scale = 1 / std::sqrt(static_cast<double>(options.scale_by_model_width ? options.dim : options.dim / options.heads));
  if (options.layer_norm) {
    norm0_.emplace(*this, "ln0", options.dim);
    norm1_.emplace(*this, "ln1", options.dim);
  }
}

Var Mab::operator()(Var queries, Var keys, const AttentionMasks& masks) {
  const Var q = query_(queries);  // (B, N, dim)
  Var x = add(q, heads(q, key_(keys), value_(keys), masks));
  if (norm0_) x = (*norm0_)(x);
  x = add(x, relu(output_(x)));
  return norm1_ ? (*norm1_)(x) : x;
}

Isab::Isab(Module& parent, const std::string& name, int64_t in, int64_t inducing, const SetOptions& options)
    : Module(parent, name),
      inducing_(parameter("I", {1, inducing, options.dim}, xavier_of_rows(inducing, options.dim))),
      mab0(*this, "mab0", options.dim, in, options),
      mab1(*this, "mab1", in, options.dim, options) {}

Var Isab::operator()(Var x, Var is_padding) {
  const Var summary = mab0(learned_rows(inducing_, x), x, {.key_is_padding = is_padding});
  return mab1(x, summary, {.query_is_padding = is_padding});
}

Pma::Pma(Module& parent, const std::string& name, int64_t seeds, const SetOptions& options)
    : Module(parent, name),
      seeds_(parameter("S", {1, seeds, options.dim}, xavier_of_rows(seeds, options.dim))),
      mab(*this, "mab", options.dim, options.dim, options) {}

Var Pma::operator()(Var x, Var is_padding) { return mab(learned_rows(seeds_, x), x, {.key_is_padding = is_padding}); }

}  // namespace sinkgrad
