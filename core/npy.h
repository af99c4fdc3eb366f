// NumPy's array files: .npy holds one array, .npz is a zip archive of them.
#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/tensor.h"

namespace sinkgrad {

/// The array in the bytes of a .npy file, row-major: f4 as f32, f8 as f64, f2 as f32, bool and integers of up to 32 bits as i32, u4 and wider
/// ones as i64, each value exactly; any byte order, C or Fortran order, versions 1 to 3 of the format, at most six dimensions. InputError
/// names `name` and what is wrong.
Tensor parse_npy(std::string_view bytes, const std::string& name);

/// The bytes of a .npy file.
std::string npy_bytes(const Tensor& array);

/// The arrays in the bytes of a .npz file, by name (without ".npy"): members that are stored or deflated, as numpy.savez and savez_compressed
/// write them. InputError beginning with `path` for anything malformed, zip64, encryption, names that are repeated, absolute or hold "..",
/// members that overlap, and archives that unpack to more than 100 times their size and 256 MiB.
std::map<std::string, Tensor> parse_npz(std::string_view bytes, const std::string& path);

/// Reads and parses a file. IoError when it cannot be read.
std::map<std::string, Tensor> read_npz(const std::filesystem::path& path);

/// Writes named arrays as one .npz, uncompressed and atomically; the same arrays give the same bytes. InputError for names that parse_npz
/// refuses, more than 65534 arrays, or 4 GiB.
void write_npz(const std::filesystem::path& path, std::span<const std::pair<std::string, Tensor>> arrays);

}  // namespace sinkgrad
