// Point Cloud Transformer of the ModelNet40 experiment (Guo et al. 2021; PCT_Pytorch, SPEC 2.2): neighbour embedding by two levels of
// sampling and grouping, four offset attentions, max pooling over the points, a perceptron.
#pragma once
#include "datasets/point_groups.h"
#include "models/point_cloud.h"
#include "nn/classifier.h"

namespace sinkgrad {

struct PointCloudTransformerOptions {
  int64_t classes = 40;
  int64_t width = 64;     ///< of the point embedding; the attention is 4 times as wide, the pooled vector 16 times
  int64_t centres = 512;  ///< of the first level; the second has half as many, which are the tokens of the attention
  int64_t neighbours = 32;
  double dropout = 0.5;
  std::optional<SinkhornOptions> sinkhorn = {};  ///< absent: upstream's normalisation of the attention
};

/// Points (B, N, 3) and, as context, the rows of their groups (datasets/point_groups.h) -> (B, classes).
class PointCloudTransformer : public Model {
 public:
  explicit PointCloudTransformer(const PointCloudTransformerOptions& options);
  Var scores(Var points, Var groups) override;
  std::vector<AttentionHeads*> attentions() override { return trunk_.attentions(); }

 private:
  PointGroups groups_;
  PointLayer embed1_, embed2_;
  LocalOperation gather0_, gather1_;
  PointTrunk trunk_;
  Linear fuse_;
  BatchNorm fuse_norm_;
  Linear linear1_;
  BatchNorm norm1_;
  Dropout dropout1_;
  Linear linear2_;
  BatchNorm norm2_;
  Dropout dropout2_;
  Linear linear3_;
};

}  // namespace sinkgrad
