// Names follow upstream's Pct: its conv_fuse is a Sequential of convolution and batch norm, its linear1 has no bias.
#include "models/point_cloud_transformer.h"

namespace sinkgrad {
namespace {

constexpr double kSlope = 0.2;  // of the leaky relus

}  // namespace

PointCloudTransformer::PointCloudTransformer(const PointCloudTransformerOptions& o)
    : groups_{o.centres, o.neighbours},
      embed1_(*this, "conv1", "bn1", 3, o.width),
      embed2_(*this, "conv2", "bn2", o.width, o.width),
      gather0_(*this, "gather_local_0", 2 * o.width, 2 * o.width),
      gather1_(*this, "gather_local_1", 4 * o.width, 4 * o.width),
      trunk_(*this, "pt_last", 4 * o.width, o.sinkhorn),
      fuse_(*this, "conv_fuse.0", 20 * o.width, 16 * o.width, {.bias = false}),
      fuse_norm_(*this, "conv_fuse.1", 16 * o.width),
      linear1_(*this, "linear1", 16 * o.width, 8 * o.width, {.bias = false}),
      norm1_(*this, "bn6", 8 * o.width),
      dropout1_(*this, "dp1", o.dropout),
      linear2_(*this, "linear2", 8 * o.width, 4 * o.width),
      norm2_(*this, "bn7", 4 * o.width),
      dropout2_(*this, "dp2", o.dropout),
      linear3_(*this, "linear3", 4 * o.width, o.classes) {
  require<InputError>(o.centres >= 2 && o.centres / 2 >= o.neighbours, "point_cloud_transformer: half of the centres must be at least ", o.neighbours,
                      ", the neighbours of each, got ", o.centres, " centres");
}

Var PointCloudTransformer::scores(Var points, Var groups) {
  Tape& tape = *points.tape;
  const int64_t batch = tape.value(points).shape[0];
  const View rows = groups ? tape.value(groups) : View{};
  const auto grouped = [&](int level, Var features) {
    const auto leaf = [&](const View& indices) { return tape.leaf(indices.reshaped({indices.shape.count()})); };
    return group_features(features, leaf(groups_.centre_rows(rows, batch, level)), leaf(groups_.neighbour_rows(rows, batch, level)));
  };
  const Var embedded = embed2_(embed1_(points));                                 // (B, N, width)
  const Var local0 = gather0_(grouped(0, embedded));                             // (B, centres, 2 width)
  const Var local1 = gather1_(grouped(1, local0));                               // (B, centres / 2, 4 width)
  const std::array features{trunk_(local1), local1};                             // 16 and 4 width
  const Var fused = leaky_relu(fuse_norm_(fuse_(concat(features, 2))), kSlope);  // (B, centres / 2, 16 width)
  const Var pooled = max(fused, {1});
  const Var hidden = dropout1_(leaky_relu(norm1_(linear1_(pooled)), kSlope));
  return linear3_(dropout2_(leaky_relu(norm2_(linear2_(hidden)), kSlope)));
}

}  // namespace sinkgrad
