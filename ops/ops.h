// Every op, one line each. Shapes in comments; everything else about an op is in its own file in ops/ and ops/cpu/.
// Float inputs have the tape's dtype. Masks, labels and indices are i32; in masks nonzero means excluded.
#pragma once
#include "core/tape.h"
#include "ops/sinkhorn_options.h"

namespace sinkgrad {

// ops/binary.cpp: numpy broadcasting.
Var add(Var a, Var b);
Var sub(Var a, Var b);
Var mul(Var a, Var b);
Var div(Var a, Var b);

// ops/unary.cpp
Var neg(Var x);
Var scale_shift(Var x, double scale, double shift);  // scale x + shift
Var exp(Var x);
Var log(Var x);
Var sqrt(Var x);
Var tanh(Var x);
Var sigmoid(Var x);
Var relu(Var x);
Var leaky_relu(Var x, double slope);  // slope x where x < 0
Var gelu(Var x);                      // x Phi(x), exact (erf)

// ops/reduce.cpp: over the given axes, all when empty; the axes are dropped, or kept with length 1.
Var sum(Var x, std::initializer_list<int> axes = {}, bool keep = false);
Var mean(Var x, std::initializer_list<int> axes = {}, bool keep = false);
Var max(Var x, std::initializer_list<int> axes = {}, bool keep = false);

// ops/layout.cpp
Var transpose(Var x, int axis_a, int axis_b);
Var concat(std::span<const Var> parts, int axis);  // up to 8 parts
Var slice(Var x, int axis, int64_t begin, int64_t end);
Var pad(Var x, int axis, int64_t before, int64_t after, double value = 0);
Var gather_rows(Var x, Var rows);            // (R, ...), i32 (K) -> (K, ...)
Var repeat(Var x, int axis, int64_t times);  // the axis must have length 1
Var patchify(Var images, int64_t patch);     // (B, C, H, W) -> (B, H/p W/p, p p C), vectors ordered (row, column, channel)

// ops/matmul.cpp
Var matmul(Var a, Var b, bool transpose_a = false, bool transpose_b = false);  // (..., N, K) (..., K, M) -> (..., N, M); b may be 2-D
Var linear(Var x, Var weight, Var bias = {});                                  // (..., K), (M, K), (M) -> (..., M)

// ops/softmax.cpp, ops/logsumexp.cpp: masks broadcast to x.
Var softmax(Var x, int axis = -1, Var is_masked = {});
Var log_softmax(Var x, int axis = -1, Var is_masked = {});
Var logsumexp(Var x, int axis = -1);  // keeps the axis with length 1

// ops/sinkhorn.cpp, ops/sinkhorn_attention.cpp: see ops/sinkhorn_options.h
Var sinkhorn(Var scores, const SinkhornOptions& options = {}, const AttentionMasks& masks = {});  // (..., N, M) -> (..., N, M)
Var sinkhorn_attention(Var q, Var k, Var v, int heads, double scale, const SinkhornOptions& options = {},
                       const AttentionMasks& masks = {});  // (B, N, H D), (B, M, H D), (B, M, H E) -> (B, N, H E)

// ops/norm.cpp
Var layer_norm(Var x, Var gain, Var bias, double epsilon = 1e-5);  // over the last axis (D), (D), (D)
Var batch_norm_train(Var x, Var gain, Var bias,
                     double epsilon = 1e-5);  // (..., C): statistics of all other axes; saved(0), saved(1): mean and biased variance (C)
Var batch_norm_eval(Var x, Var gain, Var bias, Var mean, Var variance, double epsilon = 1e-5);

// ops/embedding.cpp, ops/dropout.cpp
Var embedding(Var indices, Var table);          // i32 (...), (V, D) -> (..., D)
Var dropout(Var x, double p, uint64_t stream);  // stream: stream_id("layer name"); always on, layers decide

// ops/loss.cpp: (B, V) and i32 (B) -> (); the mean over rows whose label is not ignore_index; 0 when there is none.
enum class Smoothing { torch, fairseq };  // eps over all V classes, or over the V-1 others
Var cross_entropy(Var logits, Var labels, double smoothing = 0, Smoothing form = Smoothing::torch, int64_t ignore_index = -100);
Var nll(Var log_probabilities, Var labels, int64_t ignore_index = -100);
Var mse(Var x, Var target);  // mean over all elements

// ops/pool.cpp
Var max_pool_set(Var x, Var is_masked = {});  // (B, N, D), i32 (B, N) -> (B, D); a fully masked set gives 0

}  // namespace sinkgrad
