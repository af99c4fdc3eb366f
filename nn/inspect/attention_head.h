// One head of an attention layer, taken out of a step that a model has just made.
#pragma once
#include "nn/attention.h"
#include "nn/inspect/inspection.h"

namespace sinkgrad {

/// What Sinkhorn gets from a head, and what comes back to it.
struct HeadScores {
  Tensor scores;              ///< (n, m) f64: scale q k'
  InspectionOptions options;  ///< half-steps, tolerance, masks; the cotangent of the plan (row sums 1), from that of the layer's output
};

/// Head `head` of item `item` of the attention's last call. The call must be on a tape whose backward has run, with retain_grad(attention.last).
/// Pairs that a mask hides become scores of -inf.
HeadScores head_scores(const AttentionHeads& attention, int64_t item, int64_t head);

}  // namespace sinkgrad
