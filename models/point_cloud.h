// Parts of the Point Cloud Transformer (Guo et al. 2021; PCT_Pytorch, SPEC 2.2). Points come before channels: (B, N, C).
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/attention.h"

namespace sinkgrad {

/// Writes i32 chosen (B, count): indices of points (B, N, 3), each the farthest from those before it, starting at 0. As in the CUDA code
/// that PCT uses, points with squared norm <= 1e-3 are never chosen after the first.
void farthest_points(const View& points, const View& chosen);
/// Writes i32 nearest (B, S, k): the k points nearest to each centre (B, S, 3), nearest first, equal distances by index.
void nearest_points(const View& points, const View& centres, const View& nearest);
/// Adds b N to the indices (B, K...) of cloud b into N points: they become rows of a (B N, ...) matrix.
void make_flat_rows(const View& indices, int64_t points);
/// (B, N, C) and rows of centres (B S) and neighbours (B S k) -> (B, S, k, 2 C): [neighbour - centre, centre].
Var group_features(Var features, Var centre_rows, Var neighbour_rows);

/// Chooses centres by farthest points and groups the nearest neighbours of each, on the CPU. Keeps its memory from call to call; what a
/// call returns is valid until the next.
class SampleAndGroup {
 public:
  SampleAndGroup(int64_t centres, int64_t neighbours) : centres_(centres), neighbours_(neighbours) {}
  /// Coordinates f32 (B, N, 3) on the CPU, features (B, N, C) -> (B, centres, neighbours, 2 C).
  Var operator()(const View& coordinates, Var features);
  /// Coordinates (B, centres, 3) of the last call's centres.
  View centre_coordinates() const { return coordinates_.view().rows(0, batch_); }

 private:
  int64_t centres_, neighbours_, batch_ = 0;
  Tensor coordinates_, centre_rows_, neighbour_rows_;  // of the largest batch so far
};

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

/// (B, N, dim) -> (B, N, dim): x + relu(bn(linear(x - A v))), A from scores q q^T, one head. Queries and keys share one weight, so the
/// scores are symmetric. Upstream divides the columns of softmax by their sums and takes the transpose for A; otherwise A is Sinkhorn's
/// plan. Either way the rows of A sum to 1.
class OffsetAttention : public Module {
 public:
  OffsetAttention(Module& parent, const std::string& name, int64_t dim, std::optional<SinkhornOptions> sinkhorn = {});
  Var operator()(Var x);

  std::optional<AttentionHeads> heads;  ///< absent: upstream's normalisation

 private:
  Linear query_, value_, output_;
  BatchNorm norm_;
};

/// (B, N, dim) -> (B, N, 4 dim): two point layers, then four offset attentions whose outputs are concatenated.
class PointTrunk : public Module {
 public:
  PointTrunk(Module& parent, const std::string& name, int64_t dim, std::optional<SinkhornOptions> sinkhorn = {});
  Var operator()(Var x);
  /// Empty with upstream's normalisation.
  std::vector<AttentionHeads*> attentions();

 private:
  PointLayer layer1_, layer2_;
  OffsetAttention attention1_, attention2_, attention3_, attention4_;
};

}  // namespace sinkgrad
