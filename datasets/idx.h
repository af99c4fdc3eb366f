// The idx format of MNIST, raw or gzipped, and datasets of images and labels in it.
// A file is 00 00 type rank, `rank` dimensions as u32, then the elements; everything is big-endian.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/dataset.h"
#include "datasets/description.h"

namespace sinkgrad {

enum class IdxType : uint8_t { u8 = 0x08, i8 = 0x09, i16 = 0x0B, i32 = 0x0C, f32 = 0x0D, f64 = 0x0E };

struct IdxArray {
  IdxType type = IdxType::u8;
  Shape shape;
  std::string bytes;  ///< the elements, row-major, in this machine's byte order

  /// The elements as i32 (integers of any width), f32 or f64.
  Tensor tensor() const;
};

/// Parses an uncompressed idx file. InputError (beginning with `path`) for anything malformed.
IdxArray parse_idx(std::string_view bytes, const std::string& path);

/// Reads an idx file, raw or gzipped, of at most max_bytes decompressed.
IdxArray read_idx(const std::filesystem::path& path, uint64_t max_bytes = uint64_t{1} << 30);

/// Grey images with class labels: pixels are scaled to 0..1, then (pixel - mean) / std. Item shape (1, rows, columns).
class ImageClassification : public Dataset {
 public:
  struct Options {
    std::string name;                      ///< for description()
    std::vector<std::string> class_names;  ///< labels must be below their count
    double mean = 0, std = 1;
    int64_t limit = 0;   ///< only the first items; 0 = all
    std::string source;  ///< where the files come from, a sentence for the message when they are missing
  };
  /// Reads SPLIT-images-idx3-ubyte and SPLIT-labels-idx1-ubyte, each with or without .gz, from `folder`; split is "train" or "t10k".
  ImageClassification(const std::filesystem::path& folder, const std::string& split, Options options);

  int64_t size() const override { return size_; }
  Shape item_shape() const override { return {1, images_.shape[1], images_.shape[2]}; }
  const std::vector<std::string>& class_names() const override { return options_.class_names; }
  std::string description() const override;
  void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const override;
  std::vector<int64_t> label_histogram() const override;

 private:
  Options options_;
  std::string split_;
  IdxArray images_, labels_;  // u8 (N, rows, columns), u8 (N)
  int64_t size_ = 0;
};

DataDescription mnist_description();
DataDescription fashion_mnist_description();

}  // namespace sinkgrad
