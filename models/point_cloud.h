// Parts of the Point Cloud Transformer (Guo et al. 2021; PCT_Pytorch, SPEC 2.2). Points come before channels: (B, N, C).
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>

#include "nn/layers.h"

namespace sinkgrad {

/// i32 (B, count): indices of points (B, N, 3), each the farthest from those before it, starting at 0. As in the CUDA code that PCT uses,
/// points with squared norm <= 1e-3 are never chosen after the first.
Tensor farthest_points(const View& points, int64_t count);
/// i32 (B, S, k): the k points nearest to each centre (B, S, 3), nearest first, equal distances by index.
Tensor nearest_points(const View& points, const View& centres, int64_t k);
/// i32 (B K): rows of a (B N, ...) matrix for indices (B, K...) into N points.
Tensor flat_rows(const View& indices, int64_t points);
/// (B, N, C) and rows of centres (B S) and neighbours (B S k) -> (B, S, k, 2 C): [neighbour - centre, centre].
Var group_features(Var features, Var centre_rows, Var neighbour_rows);

/// Linear without bias, batch norm, relu.
class PointLayer {
 public:
  PointLayer(Module& parent, const std::string& linear_name, const std::string& norm_name, int64_t in, int64_t out)
      : linear_(parent, linear_name, in, out, {.bias = false}), norm_(parent, norm_name, out) {}
  Var operator()(Var x) { return relu(norm_(linear_(x))); }

 private:
  Linear linear_;
  BatchNorm norm_;
};

/// (B, S, k, in) -> (B, S, out): two point layers, then the maximum over the k neighbours.
class LocalOperation : public Module {
 public:
  LocalOperation(Module& parent, const std::string& name, int64_t in, int64_t out);
  Var operator()(Var x);

 private:
  PointLayer layer1_, layer2_;
};

/// (B, N, dim) -> (B, N, dim): x + relu(bn(linear(x - A^T v))), A from scores q q^T. Queries and keys share one weight.
/// A is softmax over rows, then each column divided by its sum (upstream), or Sinkhorn's plan.
class OffsetAttention : public Module {
 public:
  OffsetAttention(Module& parent, const std::string& name, int64_t dim, std::optional<SinkhornOptions> sinkhorn = {});
  Var operator()(Var x);

 private:
  std::optional<SinkhornOptions> sinkhorn_;
  Linear query_, value_, output_;
  BatchNorm norm_;
};

/// (B, N, dim) -> (B, N, 4 dim): two point layers, then four offset attentions whose outputs are concatenated.
class PointTrunk : public Module {
 public:
  PointTrunk(Module& parent, const std::string& name, int64_t dim, std::optional<SinkhornOptions> sinkhorn = {});
  Var operator()(Var x);

 private:
  PointLayer layer1_, layer2_;
  OffsetAttention attention1_, attention2_, attention3_, attention4_;
};

}  // namespace sinkgrad
