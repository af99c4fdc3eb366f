// Singular values, by LAPACK.
#pragma once
#include <cstdint>

#include "core/numbers.h"

namespace sinkgrad {

/// All min(n, m) singular values of a matrix (n, m), largest first. Error when the matrix is not finite.
Numbers singular_values(Numbers matrix, int64_t n, int64_t m);

}  // namespace sinkgrad
