// The optimizer's options become the constants of ops/update.h; the arithmetic on whole buffers is there.
#include "nn/optimizer.h"

#include <cmath>

namespace sinkgrad {
namespace {

using Kind = OptimizerOptions::Kind;

/// The ranges of a pack in pieces of at most ValueUpdate::kChunk.
Tensor chunks_of(const ParameterPack& pack, bool decay_all) {
  std::vector<int64_t> chunks;
  for (const ParameterPack::Range& r : pack.ranges())
    for (int64_t begin = r.begin; begin < r.end; begin += ValueUpdate::kChunk)
      chunks.insert(chunks.end(), {begin, std::min(begin + ValueUpdate::kChunk, r.end), r.decay || decay_all});
  return Tensor::of<int64_t>({static_cast<int64_t>(chunks.size()) / 3, 3}, chunks).to(pack.device());
}

}  // namespace

Optimizer::Optimizer(const ParameterPack& pack, const OptimizerOptions& options)
    : pack_(&pack), options_(options), chunks_(chunks_of(pack, options.decay_all)), state_(pack.device()) {
  auto check = [](bool ok, const char* name, const char* range, double value) {
    require(ok, "optimizer: ", name, " must be ", range, ", got ", value);
  };
  for (const double beta : {options.beta1, options.beta2}) check(beta >= 0 && beta < 1, "beta", "in [0, 1)", beta);
  check(options.momentum >= 0 && options.momentum < 1, "momentum", "in [0, 1)", options.momentum);
  check(options.weight_decay >= 0, "weight_decay", "at least 0", options.weight_decay);
  check(options.epsilon > 0 || options.kind == Kind::sgd, "epsilon", "above 0", options.epsilon);  // 0 / 0 where no gradient arrives

  const bool adam = options.kind != Kind::sgd;
  if (adam || options.momentum > 0) m_ = Tensor(pack.values().shape(), pack.dtype(), pack.device());
  if (adam) v_ = Tensor(pack.values().shape(), pack.dtype(), pack.device());
}

void Optimizer::prepare(StepState& next, double lr) const {
  const auto t = static_cast<double>(updates_ + 1);
  const double correction1 = 1 - std::pow(options_.beta1, t), root2 = std::sqrt(1 - std::pow(options_.beta2, t));
  const bool fairseq = options_.form == OptimizerOptions::Form::fairseq;
  next.step = options_.kind == Kind::sgd ? lr : fairseq ? lr * root2 / correction1 : lr / correction1;
  next.root_scale = fairseq ? 1 : 1 / root2;
  next.keep = options_.kind == Kind::adamw ? 1 - lr * options_.weight_decay : 1;
}

void Optimizer::run(const StepState* on_device) const {
  update_values(pack_->device(), {.values = pack_->values().view(),
                                  .gradients = pack_->gradients().view(),
                                  .m = m_.view(),
                                  .v = v_.view(),
                                  .chunks = chunks_.view(),
                                  .beta1 = options_.kind == Kind::sgd ? options_.momentum : options_.beta1,
                                  .beta2 = options_.beta2,
                                  .epsilon = options_.epsilon,
                                  .coupled_decay = options_.kind == Kind::adamw ? 0 : options_.weight_decay,
                                  .state = on_device});
}

void Optimizer::step(double lr, double gradient_scale) {
  StepState next{.gradient_scale = gradient_scale};
  prepare(next, lr);
  state_.write(next);
  run(state_.get());
  ++updates_;
}

std::vector<Optimizer::State> Optimizer::state() const {
  std::vector<State> state;
  if (m_) state.push_back({"m", m_});
  if (v_) state.push_back({"v", v_});
  return state;
}

std::vector<std::string> Optimizer::decayed() const {
  std::vector<std::string> names;
  if (options_.weight_decay == 0) return names;
  for (const Parameter& p : pack_->module().parameters())
    if (p.decay || options_.decay_all) names.push_back(p.name);
  return names;
}

double gradient_norm(const ParameterPack& pack) {
  const Resident<StepState> state(pack.device());
  measure_gradient(pack.device(), {.gradients = pack.gradients().view(), .state = state.get()});
  return state.read().gradient_norm;
}

}  // namespace sinkgrad
