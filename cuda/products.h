// Matrix products on the GPU, row-major and batched, from cuBLAS and cuBLASLt: cuda/products.cpp alone calls those.
// The same call gives the same bits, and may be captured into a CUDA graph: workspaces are scratch memory of the context.
#pragma once
#include <cstdint>

#include "core/dtype.h"

namespace sinkgrad::cuda {

enum class ElementType : uint8_t { f32, f64, bf16 };

/// An operand of products: one matrix for each of them, in row-major memory.
struct Matrix {
  const void* data = nullptr;
  ElementType type = ElementType::f32;
  int64_t row_length = 0;   ///< elements from one row to the next
  int64_t step = 0;         ///< elements from one matrix to the next; 0: one matrix for the whole batch
  bool transposed = false;  ///< the product takes its transpose
  Matrix flipped() const { return {data, type, row_length, step, !transposed}; }
  /// That of product i of the batch alone.
  Matrix at(int64_t i) const;
};

/// C = alpha op(A) op(B) + beta C for each product of a batch. C is dense: f64 if A and B are, else f32; beta = 0 never reads it.
struct Product {
  int64_t rows = 0, columns = 0, inner = 0;  ///< C (rows, columns), op(A) (rows, inner), op(B) (inner, columns); all positive
  Matrix a, b;                               ///< of one type
  void* c = nullptr;
  double beta = 0;
  int64_t batch = 1;
  /// tf32 lets f32 operands be rounded to 10 bits of mantissa; bf16 operands come rounded. Sums are f32 (f64 for f64).
  Precision precision = Precision::full;
  double alpha = 1;
};

/// Throws DeviceError naming the shapes and what cuBLAS says.
void multiply(const Product& p);

/// Also adds bias (columns), of C's type, to every row of the only product, in the same pass. Returns false, having done nothing,
/// where cuBLASLt has no such kernel.
bool multiply_and_add_bias(const Product& p, const void* bias);

}  // namespace sinkgrad::cuda
