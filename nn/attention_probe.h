// Watching attention while a model trains: the same few items go through the model as it stands, and every layer and head is summed up in
// a few numbers. Training does not notice: the probe has a tape of its own, and evaluation draws no random numbers.
#pragma once
#include <vector>

#include "datasets/dataset.h"
#include "nn/classifier.h"

namespace sinkgrad {

/// One head over all items of the probe. A column sum is that of a key's weights times keys / queries, excluded ones not counted: 1 when the
/// key gets its fair share, as all keys do in Sinkhorn's limit.
struct AttentionStatistics {
  double column_min = 1, column_max = 1;  ///< the least and the greatest column sum
  double marginal_error = 0;              ///< max |column sum - 1|; after an even number of half-steps max |row sum - 1|, as in SinkhornReport
  double entropy = 0;  ///< of a query's weights over the logarithm of the number of keys, mean over queries: 1 = uniform, 0 = one key
};

/// Of every head of an attention step that exposed its plan, over its batch.
std::vector<AttentionStatistics> attention_statistics(const AttentionHeads& attention);

class AttentionProbe {
 public:
  /// Looks at the first `items` items of `data`. The model must live on `device`; model and data must outlive the probe.
  AttentionProbe(Model& model, const DataSource& data, Device device, Precision precision = Precision::full, int64_t items = 16);
  /// [layer][head], layers as in Model::attentions(); empty for a model without attention of its own.
  std::vector<std::vector<AttentionStatistics>> measure();

 private:
  Model* model_;
  const DataSource* data_;
  int64_t items_;
  Tape tape_;
  BatchMemory memory_;
};

}  // namespace sinkgrad
