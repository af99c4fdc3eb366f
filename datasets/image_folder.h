// Classification of JPEG photographs in a folder, such as Kaggle's cats and dogs: decoded and resized once into a cache file, cropped and
// flipped anew in each epoch (SPEC 2.5).
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "datasets/cache.h"
#include "datasets/dataset.h"
#include "datasets/description.h"

namespace sinkgrad {

/// What to do with a file of some kind: decode it as far as possible, leave it out, or refuse the whole folder.
enum class FilePolicy : uint8_t { convert, skip, refuse };

struct ImageReading {
  int64_t size = 224;  ///< every image is resized to size x size, without keeping its proportions
  FilePolicy on_broken = FilePolicy::refuse, on_grey = FilePolicy::convert, on_cmyk = FilePolicy::convert;  ///< broken files cannot be converted
  std::string cache_folder = "";                                                                            ///< see cache_path()
};

/// All images of a folder at one size, by class and then by number.
struct ImageCollection {
  std::vector<std::string> class_names;
  std::vector<int32_t> labels;  ///< one per image
  std::string notes;            ///< for people: which files were broken, grey or CMYK; may be empty
  int64_t size = 0;
  std::shared_ptr<const CacheFile> cache = {};  ///< u8 (images, size, size, 3)
};

/// Reads CLASS.N.jpg in `folder` or folder/train, or else CLASS/*.jpg in folder; classes in order of their names. IoError when there is
/// no image; InputError lists the files that the options refuse.
ImageCollection read_images(const std::filesystem::path& folder, const ImageReading& reading);

DataDescription cats_dogs_description();

/// One split of a collection. Items are (3, size, size), values 0..1 before mean and std.
class ImageFolder : public Dataset {
 public:
  struct Options {
    std::string name;
    double test_share = 0.2;    ///< of each class
    bool random_split = true;   ///< by seed; otherwise the last images of each class by number are the test set
    bool augment = true;        ///< in training: random resized crop, then a flip with probability 1/2
    bool augment_test = false;  ///< also in evaluation, as the authors' code does; the same for each evaluation
    double crop_area = 0.08;    ///< least share of the image that a crop keeps
    double mean = 0, std = 1;   ///< values become (value - mean) / std
    uint64_t seed = 0;
  };
  enum class Split : uint8_t { train, test };
  ImageFolder(std::shared_ptr<const ImageCollection> images, Split split, const Options& options);

  int64_t size() const override { return static_cast<int64_t>(items_.size()); }
  Shape item_shape() const override { return {3, images_->size, images_->size}; }
  const std::vector<std::string>& class_names() const override { return images_->class_names; }
  std::string description() const override;
  void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const override;
  std::vector<int64_t> label_histogram() const override;

 private:
  void load_item(uint32_t index, std::optional<uint64_t> epoch, float* out) const;
  std::shared_ptr<const ImageCollection> images_;
  Split split_;
  Options options_;
  std::vector<uint32_t> items_;  // of the collection
};

}  // namespace sinkgrad
