// One matrix of fused attention as the fast kernels see it: heads are slices of the rows of Q, K, V and O.
#pragma once
#include <cstdint>

#include "core/dtype.h"
#include "ops/cpu/sinkhorn_matrix.h"

namespace sinkgrad::cpu {

template <class T>
struct AttentionMatrix {
  int64_t n, m, d, e;
  const T *q, *k, *v;                     ///< (n, d), (m, d), (m, e)
  int64_t q_row, v_row;                   ///< row lengths of Q and K, and of V and O
  const int32_t *keys, *queries, *pairs;  ///< masks (m), (n), (n, m), or null
  T scale;
  Precision precision;  ///< of the operands of products: full or bf16
  SinkhornTask task;
  SinkhornState<T> state;
  int64_t next_q, next_k, next_v, next_o;  ///< from these Q, K, V, O to those that the same thread takes next; 0: none
  T* row_max;                              ///< (n): kept by the forward for the backward, the largest score of every row times log2(e)
};

/// Where the gradients of a matrix go: null if not wanted; stored or added.
template <class T>
struct AttentionGradients {
  T *dq, *dk, *dv;
  bool add_q, add_k, add_v;
};

/// In the scaling domain (one exponential per score): writes O (n, e), the state and row_max. `plan`, if given, receives P (n, m).
/// Returns false when the numbers leave the range in which that is safe; the log domain must be used then.
template <class T>
bool attention_forward(const AttentionMatrix<T>& a, T* out, T* plan);
/// From the state alone, in the form dS = P o (dO V^T - A B^T) with A and B of rank about `iterations`. Returns false, having written
/// nothing, when the potentials drift too far for that form.
template <class T>
bool attention_backward(const AttentionMatrix<T>& a, const T* out, const T* d_out, const AttentionGradients<T>& gradients);

}  // namespace sinkgrad::cpu
