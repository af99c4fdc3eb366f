// Reading numeric arrays from HDF5 files; the one file that knows the library. One thread at a time reads, the library is not thread-safe.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/shape.h"

namespace sinkgrad {

class Hdf5File {
 public:
  /// IoError when there is no such file, InputError when it is not HDF5, is truncated or damaged; messages begin with the path.
  explicit Hdf5File(std::filesystem::path path);
  ~Hdf5File();
  Hdf5File(const Hdf5File&) = delete;
  Hdf5File& operator=(const Hdf5File&) = delete;

  bool has(const std::string& name) const;
  /// InputError when there is no such array or its rank is more than Shape holds.
  Shape shape(const std::string& name) const;
  /// Rows begin .. end-1 of the first dimension, whatever numeric type they are stored in.
  void read_rows(const std::string& name, int64_t begin, int64_t end, std::span<float> values) const;
  /// A whole array of integers.
  std::vector<int32_t> read_integers(const std::string& name) const;

 private:
  void read(const std::string& name, int64_t begin, int64_t end, bool integers, void* values) const;
  std::filesystem::path path_;
  int64_t file_;
};

}  // namespace sinkgrad
