// Constructors of the small layers, and the running statistics of batch norm.
#include "nn/layers.h"

#include "ops/update.h"

namespace sinkgrad {
namespace {

constexpr double kMomentum = 0.1;  // torch's: the weight of the newest batch

}  // namespace

Linear::Linear(Module& parent, const std::string& name, int64_t in, int64_t out, const LinearOptions& options)
    : Module(parent, name),
      weight(parameter("weight", {out, in}, options.weight_init.value_or(Init::torch_linear(in)))),
      bias(options.bias ? &parameter("bias", {out}, options.bias_init.value_or(Init::torch_linear(in)), false) : nullptr) {}

LayerNorm::LayerNorm(Module& parent, const std::string& name, int64_t dim, double epsilon)
    : Module(parent, name),
      weight_(parameter("weight", {dim}, Init::constant(1), false)),
      bias_(parameter("bias", {dim}, Init::constant(0), false)),
      epsilon_(epsilon) {}

BatchNorm::BatchNorm(Module& parent, const std::string& name, int64_t dim, double epsilon)
    : Module(parent, name),
      weight_(parameter("weight", {dim}, Init::constant(1), false)),
      bias_(parameter("bias", {dim}, Init::constant(0), false)),
      mean_(buffer("running_mean", {dim}, 0)),
      variance_(buffer("running_var", {dim}, 1)),
      epsilon_(epsilon) {}

Var BatchNorm::operator()(Var x) {
  Tape& tape = *x.tape;
  if (!tape.training()) return batch_norm_eval(x, weight_.on(tape), bias_.on(tape), tape.leaf(mean_.value), tape.leaf(variance_.value), epsilon_);
  require<ShapeError>(x.shape().count(0, x.shape().rank() - 1) > 1, "batch_norm: training needs more than one value per channel, got ", x.shape());
  const Var y = batch_norm_train(x, weight_.on(tape), bias_.on(tape), epsilon_);
  update_running_statistics(y);
  return y;
}

void BatchNorm::update_running_statistics(Var normalised) {
  const Tape& tape = *normalised.tape;
  const Shape& shape = normalised.shape();
  sinkgrad::update_running_statistics(tape.device(), {.mean = mean_.value,
                                                      .variance = variance_.value,
                                                      .batch_mean = tape.saved(normalised, 0),
                                                      .batch_variance = tape.saved(normalised, 1),
                                                      .count = shape.count(0, shape.rank() - 1),
                                                      .momentum = kMomentum});
}

Embedding::Embedding(Module& parent, const std::string& name, int64_t count, int64_t dim, Init init)
    : Module(parent, name), weight_(parameter("weight", {count, dim}, init)) {}

Dropout::Dropout(Module& parent, const std::string& name, double p) : Module(parent, name), p_(p), stream_(stream_id(path())) {
  require(p >= 0 && p < 1, "dropout: the probability must lie in [0, 1), got ", p);
}

}  // namespace sinkgrad
