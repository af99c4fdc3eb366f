// NumPy's array files: .npy holds one array, .npz is a zip archive of them.
#pragma once
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/tensor.h"

namespace sinkgrad {

/// The array in the bytes of a .npy file as f64, row-major: bool, integers and floats of any width and byte order, C or Fortran order,
/// versions 1 to 3 of the format, at most six dimensions. InputError names `name` and what is wrong.
Tensor parse_npy(std::string_view bytes, const std::string& name);

/// The bytes of a .npy file.
std::string npy_bytes(const Tensor& array);

/// Writes named arrays as one .npz, uncompressed and atomically; the same arrays give the same bytes. Error beyond 4 GiB.
void write_npz(const std::filesystem::path& path, std::span<const std::pair<std::string, Tensor>> arrays);

}  // namespace sinkgrad
