// Parts of the Point Cloud Transformer (Guo et al. 2021; PCT_Pytorch, SPEC 2.2). Points come before channels: (B, N, C).
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/attention.h"

namespace sinkgrad {

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
