// What sinkhorn and sinkhorn_attention share: options as attributes, mask checks, the reference composition, samples.
#pragma once
#include <string>
#include <vector>

#include "ops/sinkhorn_options.h"

namespace sinkgrad {

/// Appends the options as attributes; throws on values without meaning.
void add_sinkhorn_attrs(const char* op, const SinkhornOptions& options, Attrs& attrs);
SinkhornOptions sinkhorn_options_of(const Attrs& attrs);
/// Checks the last three inputs: key (B, M), query (B, N) and pair (N, M) or (B, N, M) masks, any of them absent.
void check_sinkhorn_masks(const char* op, int64_t batch, int64_t n, int64_t m, std::span<const View> in, const Attrs& attrs);
/// The kept buffers: row potentials, column potentials, statistics, for `count` matrices.
Signature sinkhorn_signature(const Shape& out, int64_t count, int64_t n, int64_t m, const Attrs& attrs);
/// The plan (B, H, N, M) or (B, N, M) of scores of that shape by alternating log_softmax.
Var compose_sinkhorn(Var scores, const SinkhornOptions& options, const AttentionMasks& masks);
/// A frozen gradient is not the derivative.
bool sinkhorn_has_true_gradient(const Attrs& attrs);

}  // namespace sinkgrad
