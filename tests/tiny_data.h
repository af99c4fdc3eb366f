// Tiny data sets in the original formats, for tests: OFF meshes, HDF5 clouds, JPEG photographs, idx images; and the real data, where it is.
#pragma once
#include <hdf5.h>
#include <unistd.h>

#include <cstdio>
// jpeglib.h needs the names of cstdio.
#include <jpeglib.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/rng.h"
#include "core/shape.h"
#include "temporary_folder.h"

namespace tiny {

namespace fs = std::filesystem;

using Folder = sinkgrad::TemporaryFolder;

inline void write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  sinkgrad::write_file(path, bytes);
}

/// A tetrahedron with corners at the origin and at `size` on each axis.
inline std::string tetrahedron(double size, const std::string& header = "OFF\n4 4 6\n") {
  const std::string s = std::to_string(size);
  return header + "0 0 0\n" + s + " 0 0\n0 " + s + " 0\n0 0 " + s + "\n3 0 1 2\n3 0 1 3\n3 0 2 3\n3 1 2 3\n";
}

/// ModelNet's tree with `train` and `test` meshes of each class; the first mesh of the first class has a glued header.
inline void write_modelnet(const fs::path& folder, const std::vector<std::string>& classes, int train, int test) {
  int n = 0;
  for (const std::string& name : classes)
    for (const auto& [split, count] : {std::pair("train", train), std::pair("test", test)})
      for (int i = 0; i < count; ++i, ++n)
        write(folder / name / split / (name + "_000" + std::to_string(i + 1) + ".off"), tetrahedron(1 + n, n == 0 ? "OFF4 4 6\n" : "OFF\n4 4 6\n"));
}

/// Adds an array to an HDF5 file, which is made when it does not exist.
template <class T>
void write_h5(const fs::path& path, const std::string& name, const sinkgrad::Shape& shape, const std::vector<T>& values) {
  const hid_t type = std::is_same_v<T, double>    ? H5T_NATIVE_DOUBLE
                     : std::is_same_v<T, float>   ? H5T_NATIVE_FLOAT
                     : std::is_same_v<T, uint8_t> ? H5T_NATIVE_UINT8
                                                  : H5T_NATIVE_INT32;
  std::vector<hsize_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(static_cast<hsize_t>(shape[i]));
  const hid_t file =
      fs::exists(path) ? H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT) : H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t space = H5Screate_simple(shape.rank(), dims.data(), nullptr);
  const hid_t array = H5Dcreate2(file, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  sinkgrad::require(H5Dwrite(array, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0, "writing ", path.string(), " failed");
  H5Dclose(array);
  H5Sclose(space);
  H5Fclose(file);
}

/// Random coordinates of `count` clouds.
template <class T>
std::vector<T> clouds(int64_t count, int64_t points, const std::string& stream) {
  sinkgrad::RandomStream random(1, stream);
  std::vector<T> values(static_cast<size_t>(3 * count * points));
  for (T& x : values) x = static_cast<T>(random.uniform(-1, 1));
  return values;
}

/// A JPEG file of one colour; J_COLOR_SPACE is JCS_RGB, JCS_GRAYSCALE or JCS_CMYK with as many numbers in `pixel`.
inline std::string jpeg(int width, int height, const std::vector<uint8_t>& pixel, J_COLOR_SPACE space = JCS_RGB, bool progressive = false) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = static_cast<int>(pixel.size());
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  if (progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  std::vector<uint8_t> row;
  for (int x = 0; x < width; ++x) row.insert(row.end(), pixel.begin(), pixel.end());
  for (int y = 0; y < height; ++y) {
    JSAMPROW line = row.data();
    jpeg_write_scanlines(&info, &line, 1);
  }
  jpeg_finish_compress(&info);
  std::string out(reinterpret_cast<char*>(bytes), size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return out;
}

/// Kaggle's folder with `count` images of each class, cats reddish and dogs bluish.
inline void write_cats_dogs(const fs::path& folder, int count) {
  for (int i = 0; i < count; ++i) {
    const auto shade = static_cast<uint8_t>(20 * i);
    write(folder / ("cat." + std::to_string(i) + ".jpg"), jpeg(30 + i, 40, {220, shade, 20}));
    write(folder / ("dog." + std::to_string(i) + ".jpg"), jpeg(50, 30 + i, {20, shade, 220}));
  }
}

/// MNIST's four files with `count` images each.
inline void write_mnist(const fs::path& folder, int count) {
  const auto word = [](int n) {
    return std::string{static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8), static_cast<char>(n)};
  };
  for (const char* split : {"train", "t10k"}) {
    std::string pixels, labels;
    for (int i = 0; i < count; ++i) {
      labels += static_cast<char>(i % 10);
      for (int k = 0; k < 28 * 28; ++k) pixels += static_cast<char>(k * (i + 1));
    }
    write(folder / (std::string(split) + "-images-idx3-ubyte"), word(0x0803) + word(count) + word(28) + word(28) + pixels);
    write(folder / (std::string(split) + "-labels-idx1-ubyte"), word(0x0801) + word(count) + labels);
  }
}

/// A folder or file of the real data: in $SINKGRAD_DATA, or in shared/data beside the source tree. Empty when it is not there.
inline fs::path real_data(const std::string& name) {
  const char* variable = std::getenv("SINKGRAD_DATA");
  const fs::path path = fs::path(variable ? variable : SINKGRAD_SOURCE_DIR "/../shared/data") / name;
  return fs::exists(path) ? path : fs::path();
}

/// Unpacks a .tar.gz into a folder.
inline void unpack(const fs::path& archive, const fs::path& folder) {
  const std::string command = "tar -xzf '" + archive.string() + "' -C '" + folder.string() + "'";
  sinkgrad::require(std::system(command.c_str()) == 0, "unpacking ", archive.string(), " failed");
}

}  // namespace tiny
