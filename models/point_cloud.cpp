// The PCT's parts. Which points form a group is told by the data: indices have no gradient.
#include "models/point_cloud.h"

#include <algorithm>

namespace sinkgrad {

Var group_features(Var features, Var centre_rows, Var neighbour_rows) {
  Tape& tape = *features.tape;
  const int64_t batch = features.shape()[0], channels = features.shape()[2];
  const int64_t groups = centre_rows.shape().count(), k = neighbour_rows.shape().count() / groups;
  const Var flat = tape.reshape(features, {features.shape().count() / channels, channels});
  const Var centres = repeat(tape.reshape(gather_rows(flat, centre_rows), {groups, 1, channels}), 1, k);  // (B S, k, C)
  const Var neighbours = tape.reshape(gather_rows(flat, neighbour_rows), {groups, k, channels});
  const std::array parts{sub(neighbours, centres), centres};
  return tape.reshape(concat(parts, 2), {batch, groups / batch, k, 2 * channels});
}

LocalOperation::LocalOperation(Module& parent, const std::string& name, int64_t in, int64_t out)
    : Module(parent, name), layer1_(*this, "conv1", "bn1", in, out), layer2_(*this, "conv2", "bn2", out, out) {}

Var LocalOperation::operator()(Var x) { return max(layer2_(layer1_(x)), {2}); }

OffsetAttention::OffsetAttention(Module& parent, const std::string& name, int64_t dim, std::optional<SinkhornOptions> sinkhorn)
    : Module(parent, name),
      query_(*this, "q_conv", dim, dim / 4, {.bias = false}),
      value_(*this, "v_conv", dim, dim),
      output_(*this, "trans_conv", dim, dim),
      norm_(*this, "after_norm", dim) {
  if (sinkhorn) heads = AttentionHeads{.count = 1, .scale = 1, .sinkhorn = *sinkhorn};
}

Var OffsetAttention::operator()(Var x) {
  const Var q = query_(x), v = value_(x);  // (B, N, dim / 4), (B, N, dim)
  Var attended;
  if (heads) {
    attended = (*heads)(q, q, v);
  } else {
    const Var rows = softmax(matmul(q, q, false, true));  // (B, N, N)
    const Var plan = div(rows, scale_shift(sum(rows, {1}, true), 1, 1e-9));
    attended = matmul(plan, v, true);  // point j gathers by column j
  }
  return add(x, relu(norm_(output_(sub(x, attended)))));
}

PointTrunk::PointTrunk(Module& parent, const std::string& name, int64_t dim, std::optional<SinkhornOptions> sinkhorn)
    : Module(parent, name),
      layer1_(*this, "conv1", "bn1", dim, dim),
      layer2_(*this, "conv2", "bn2", dim, dim),
      attention1_(*this, "sa1", dim, sinkhorn),
      attention2_(*this, "sa2", dim, sinkhorn),
      attention3_(*this, "sa3", dim, sinkhorn),
      attention4_(*this, "sa4", dim, sinkhorn) {}

Var PointTrunk::operator()(Var x) {
  const Var a = attention1_(layer2_(layer1_(x))), b = attention2_(a), c = attention3_(b), d = attention4_(c);
  const std::array parts{a, b, c, d};
  return concat(parts, 2);
}

std::vector<AttentionHeads*> PointTrunk::attentions() {
  std::vector<AttentionHeads*> all;
  for (OffsetAttention* a : {&attention1_, &attention2_, &attention3_, &attention4_})
    if (a->heads) all.push_back(&*a->heads);
  return all;
}

}  // namespace sinkgrad
