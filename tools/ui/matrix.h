// Matrices as people write them: rows of numbers, JSON, or NumPy's .npy.
#pragma once
#include <istream>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace sinkgrad {

/// A matrix (n, m) of f64 from text: one row per line or between semicolons, numbers separated by blanks or commas, `#` begins a comment,
/// inf and nan are numbers. Or JSON: an array of rows, or an object that holds it under "C". InputError names `name`, the line and what is
/// required there.
Tensor parse_matrix(std::string_view text, const std::string& name);

/// Reads a file, by its content: .npy or text; "-" is `in`. IoError when it cannot be read, else as parse_matrix.
Tensor read_matrix(const std::string& path, std::istream& in);

}  // namespace sinkgrad
