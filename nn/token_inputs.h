// The three planes of a batch of texts (datasets/tokens.h) as Vars.
#pragma once
#include "core/tape.h"

namespace sinkgrad {

struct TokenInputs {
  Var tokens, positions, is_padding;  ///< i32 (B, N)

  /// From i32 (3, B, N). ShapeError for anything else.
  explicit TokenInputs(Var planes) {
    const View all = planes.tape->value(planes);
    require<ShapeError>(all.shape.rank() == 3 && all.shape[0] == 3 && all.dtype == DType::i32,
                        "tokens: must be i32 (3, B, N): tokens, positions and padding, got ", name_of(all.dtype), " ", all.shape);
    const auto plane = [&](int64_t i) { return planes.tape->leaf(all.rows(i, i + 1).reshaped({all.shape[1], all.shape[2]})); };
    tokens = plane(0), positions = plane(1), is_padding = plane(2);
  }
};

}  // namespace sinkgrad
