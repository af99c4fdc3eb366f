// The small layers. Each takes (parent, name), is called with a Var and names its parameters as torch does: weight, bias.
// Shapes are (..., features): everything before the last dimension is batch.
#pragma once
#include <optional>
#include <string>

#include "nn/module.h"
#include "ops/ops.h"

namespace sinkgrad {

struct LinearOptions {
  bool bias = true;
  std::optional<Init> weight_init = {}, bias_init = {};  ///< absent: torch's Linear
};

/// (..., in) -> (..., out): x weight^T + bias, weight (out, in).
class Linear : public Module {
 public:
  Linear(Module& parent, const std::string& name, int64_t in, int64_t out, const LinearOptions& options = {});
  Var operator()(Var x) const { return linear(x, weight.on(*x.tape), bias ? bias->on(*x.tape) : Var{}); }

  Parameter& weight;
  Parameter* const bias;  ///< null without bias
};

/// Over the last dimension.
class LayerNorm : public Module {
 public:
  LayerNorm(Module& parent, const std::string& name, int64_t dim, double epsilon = 1e-5);
  Var operator()(Var x) const { return layer_norm(x, weight_.on(*x.tape), bias_.on(*x.tape), epsilon_); }

 private:
  Parameter &weight_, &bias_;
  double epsilon_;
};

/// Over all dimensions but the last. While the tape trains it uses the batch's statistics and moves the running ones towards them
/// (running_mean, running_var: torch's momentum 0.1 and unbiased variance); otherwise it uses the running ones.
class BatchNorm : public Module {
 public:
  BatchNorm(Module& parent, const std::string& name, int64_t dim, double epsilon = 1e-5);
  /// Throws when training on a single value per channel: it has no variance.
  Var operator()(Var x);

 private:
  void update_running_statistics(Var normalised);
  Parameter &weight_, &bias_;
  Buffer &mean_, &variance_;
  double epsilon_;
};

/// i32 (...) -> (..., dim).
class Embedding : public Module {
 public:
  Embedding(Module& parent, const std::string& name, int64_t count, int64_t dim, Init init = Init::normal(1));
  Var operator()(Var indices) const { return embedding(indices, weight_.on(*indices.tape)); }

 private:
  Parameter& weight_;
};

/// Zeroes entries with probability p and scales the others by 1/(1-p) while the tape trains; its path names its random stream.
class Dropout : public Module {
 public:
  Dropout(Module& parent, const std::string& name, double p);
  Var operator()(Var x) const { return p_ > 0 && x.tape->training() ? dropout(x, p_, stream_) : x; }

 private:
  double p_;
  uint64_t stream_;
};

}  // namespace sinkgrad
