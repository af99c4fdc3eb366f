// Families of parity that need no model: sinkhorn, attention of given heads, cross-entropy, optimizers, sampling of points.
#include <algorithm>
#include <cmath>

#include "datasets/point_groups.h"
#include "models/point_cloud.h"
#include "nn/attention.h"
#include "nn/optimizer.h"
#include "parity.h"

namespace parity {
namespace {

void run_sinkhorn(const Fixture& f, Comparison& c) {
  SinkhornOptions options = f.sinkhorn();
  options.rows_sum_to_inverse_count = true;  // total mass 1
  Tape tape;
  const Var scores = tape.variable(f.at("in/scores")), plan = sinkhorn(scores, options);
  const SinkhornPotentials potentials = sinkhorn_potentials(plan, tape.value(scores));
  c.output("plan", tape.value(plan));
  c.output("u", potentials.row.view());
  c.output("v", potentials.column.view());
  tape.backward(plan, f.at("cotangent"));
  c.gradient("in/scores", tape.grad(scores));
}

/// (B, H, N, D) queries, keys and values; only keys are masked.
void run_attention(const Fixture& f, Comparison& c) {
  Tape tape;
  const Shape q_shape = f.at("in/q").shape();
  const auto joined = [&](Var x) {  // (B, N, H D)
    const Shape s = x.shape();
    return tape.reshape(transpose(x, 1, 2), {s[0], s[2], s[1] * s[3]});
  };
  const Var q = tape.variable(f.at("in/q")), k = tape.variable(f.at("in/k")), v = tape.variable(f.at("in/v"));
  const Tensor key_is_padding = f.integers("in/key_is_pad");
  AttentionHeads heads{.count = static_cast<int>(q_shape[1]), .scale = 1 / std::sqrt(static_cast<double>(q_shape[3])), .sinkhorn = f.sinkhorn()};
  heads.sinkhorn.expose_plan = true;
  const Var attended = heads(joined(q), joined(k), joined(v), {.key_is_padding = tape.leaf(key_is_padding)});  // (B, N, H E)
  const Var output = transpose(tape.reshape(attended, {q_shape[0], q_shape[2], q_shape[1], f.dim("in/v", 3)}), 1, 2);
  c.output("attention", heads.plan());
  c.output("output", tape.value(output));
  tape.backward(output, f.at("cotangent"));
  c.gradient("in/q", tape.grad(q));
  c.gradient("in/k", tape.grad(k));
  c.gradient("in/v", tape.grad(v));
}

void run_cross_entropy(const Fixture& f, Comparison& c) {
  Tape tape;
  const Tensor labels = f.integers("in/labels");
  const Var logits = tape.variable(f.at("in/logits"));
  const Var loss = cross_entropy(logits, tape.leaf(labels), f.number("label_smoothing", f.number("label smoothing", 0)),
                                 f.says("V-1") ? Smoothing::fairseq : Smoothing::torch, static_cast<int64_t>(f.number("ignore_index", -100)));
  c.output("loss", tape.value(loss));
  tape.backward(loss);
  c.gradient("in/logits", tape.grad(logits));
}

struct OneParameter : Module {
  explicit OneParameter(const Shape& shape) : x(parameter("x", shape, Init::constant(0))) {}
  Parameter& x;
};

/// x follows the gradient of sum |x - target|^3 for as many steps as the trajectory has.
void run_optimizer(const Fixture& f, Comparison& c) {
  OneParameter module(f.at("x0").shape());
  ParameterPack pack(module, DType::f32, 1);
  std::copy_n(f.at("x0").view().as<float>(), f.at("x0").count(), module.x.value.as<float>());
  const bool is_sgd = f.says("SGD"), is_adamw = f.says("AdamW");
  Optimizer optimizer(pack, {.kind = is_sgd     ? OptimizerOptions::Kind::sgd
                                     : is_adamw ? OptimizerOptions::Kind::adamw
                                                : OptimizerOptions::Kind::adam,
                             .beta1 = f.number("betas", 0.9),
                             .beta2 = f.number("betas", 0.999, 1),
                             .epsilon = f.number("eps", 1e-8),
                             .momentum = f.number("momentum", 0),
                             .weight_decay = f.number("weight_decay", 0)});
  std::vector<double> trajectory;
  for (int64_t step = 0; step < f.dim("trajectory", 0); ++step) {
    for (int64_t i = 0; i < module.x.shape.count(); ++i) {
      const float d = module.x.value.as<float>()[i] - f.at("target").view().as<float>()[i];
      module.x.grad.as<float>()[i] = 3 * d * std::abs(d);
    }
    optimizer.step(f.number("lr", 1e-3));
    const std::vector<double> x = to_doubles(module.x.value);
    trajectory.insert(trajectory.end(), x.begin(), x.end());
  }
  c.check("trajectory", trajectory, 1e-5);
}

/// Farthest points, their nearest neighbours and [neighbour - centre, centre], neighbours sorted by their first channel.
void run_sampling(const Fixture& f, Comparison& c) {
  const Tensor &xyz = f.at("in/xyz"), &features = f.at("in/features");
  const int64_t batch = xyz.shape()[0], n = xyz.shape()[1], k = static_cast<int64_t>(f.number("k", 1)), channels = 2 * features.shape()[2];
  const Tensor chosen({batch, static_cast<int64_t>(f.number("npoint", 1))}, DType::i32);
  farthest_points(xyz.view(), chosen.view());
  const Tensor centre_rows = chosen.clone();
  make_flat_rows(centre_rows.view(), n);
  Tape tape;
  const auto flat = [&](const Tensor& rows) { return tape.reshape(tape.leaf(rows), {rows.count()}); };
  const Var centres = gather_rows(tape.reshape(tape.leaf(xyz), {batch * n, 3}), flat(centre_rows));  // (B S, 3)
  c.output("fps_index", chosen.view());
  c.output("new_xyz", tape.value(centres));

  const Tensor neighbours({batch, chosen.shape()[1], k}, DType::i32);
  nearest_points(xyz.view(), tape.value(centres).reshaped({batch, chosen.shape()[1], 3}), neighbours.view());
  make_flat_rows(neighbours.view(), n);
  const std::vector<double> grouped = to_doubles(tape.value(group_features(tape.leaf(features), flat(centre_rows), flat(neighbours))));
  const PointGroups groups{chosen.shape()[1], k};
  const Tensor rows_of_groups({batch * groups.rows_per_cloud()}, DType::i32);
  write_groups(xyz.view(), groups, rows_of_groups.view());
  require(to_doubles(groups.centre_rows(rows_of_groups.view(), batch, 0)) == to_doubles(centre_rows.view()) &&
              to_doubles(groups.neighbour_rows(rows_of_groups.view(), batch, 0)) == to_doubles(neighbours.view()),
          "write_groups must do these steps");
  std::vector<std::vector<double>> rows;
  for (auto row = grouped.begin(); row != grouped.end(); row += channels) rows.emplace_back(row, row + channels);
  for (auto group = rows.begin(); group != rows.end(); group += k) std::sort(group, group + k);
  std::vector<double> sorted;
  for (const auto& row : rows) sorted.insert(sorted.end(), row.begin(), row.end());
  c.check("out/grouped_sorted", sorted, kTolerance);
}

}  // namespace

std::vector<Family> op_families() {
  return {{"sinkhorn", [](const Fixture& f) { return f.has("in/scores"); }, run_sinkhorn},
          {"attention", [](const Fixture& f) { return f.has("in/q") && f.has("in/k") && f.has("in/v"); }, run_attention},
          {"cross-entropy", [](const Fixture& f) { return f.has("in/logits") && f.has("in/labels"); }, run_cross_entropy},
          {"optimizer", [](const Fixture& f) { return f.has("trajectory"); }, run_optimizer},
          {"sampling", [](const Fixture& f) { return f.has("in/xyz"); }, run_sampling}};
}

}  // namespace parity
