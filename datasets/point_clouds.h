// Classification of point clouds that were sampled or decoded once into a cache file: ModelNet40 in its three forms, LabeledDB.
// SPEC 2.1 and 2.2 say what the paper's experiments do with them.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "datasets/cache.h"
#include "datasets/dataset.h"
#include "datasets/description.h"

namespace sinkgrad {

/// All clouds of a data set with their labels and their division into training and test.
struct CloudCollection {
  int64_t points = 0;  ///< of each cloud
  std::vector<std::string> class_names;
  std::vector<int32_t> labels;                  ///< one per cloud
  std::vector<uint32_t> train, test;            ///< clouds
  std::string notes;                            ///< for people: what was left out; may be empty
  std::shared_ptr<const CacheFile> cache = {};  ///< f32 (clouds, points, 3)
};

/// How meshes become clouds.
struct MeshSampling {
  int64_t points = 10'000;  ///< drawn uniformly by area from each mesh, by its own random stream
  uint64_t seed = 0;
  std::string cache_folder = "";  ///< see cache_path()
};

/// ModelNet's layout: folder/CLASS/train/*.off and folder/CLASS/test/*.off, classes in order of their names. With skip_glued, files whose
/// counts are glued to the word OFF are left out, as the authors' code does. IoError when there is no such folder or file in it.
CloudCollection read_split_meshes(const std::filesystem::path& folder, const MeshSampling& sampling, bool skip_glued);

/// folder/CLASS/N.off without a split: the last test_per_class files of each class by number are the test set. With drop_duplicates, a
/// file that equals an earlier one byte for byte is left out first.
CloudCollection read_flat_meshes(const std::filesystem::path& folder, const MeshSampling& sampling, int64_t test_per_class, bool drop_duplicates);

/// The authors' ModelNet40_cloud.h5: tr_cloud and test_cloud (N, points, 3), tr_label(s) and test_label(s).
CloudCollection read_cloud_h5(const std::filesystem::path& file, const std::string& cache_folder);

/// modelnet40_ply_hdf5_2048: ply_data_train*.h5 and ply_data_test*.h5 with data (N, 2048, 3) and label; train_files.txt and test_files.txt,
/// where present, say which and in what order, shape_names.txt names the classes.
CloudCollection read_ply_h5(const std::filesystem::path& folder, const std::string& cache_folder);

DataDescription modelnet40_description();
DataDescription modelnet40_2048_description();
DataDescription labeleddb_description();

/// One split of a collection. Each cloud is the same subset of its points, normalised, and in training augmented.
class PointClouds : public Dataset {
 public:
  enum class Subset : uint8_t {
    strided,  ///< the authors' ModelNet40 loader: training, every k-th of one random order; test, points 1, 1+k, 1+2k, ...; k = stored / points
    first,    ///< the first ones
  };
  enum class Normalise : uint8_t {
    none,
    standardise,  ///< clip to 100 mean |x|, subtract the mean and divide by the standard deviation of all coordinates of a cloud together
    unit_sphere,  ///< centre of mass to 0, largest distance from it to 1
  };
  enum class Augment : uint8_t {
    none,
    rotate_scale,         ///< Set Transformer: about z by up to 0.1 pi, then each axis by 0.8 to 1.25
    dropout_scale_shift,  ///< PCT: a share of up to 0.875 of the points moves to point 0; axes by 2/3 to 3/2, shifted by up to 0.2; random order
  };
  struct Options {
    std::string name;
    int64_t points = 1024;
    Subset subset = Subset::strided;
    Normalise normalise = Normalise::standardise;
    Augment augment = Augment::none;
    uint64_t seed = 0;
  };
  enum class Split : uint8_t { train, test };
  PointClouds(std::shared_ptr<const CloudCollection> clouds, Split split, const Options& options);

  int64_t size() const override { return static_cast<int64_t>(items().size()); }
  Shape item_shape() const override { return {options_.points, 3}; }
  const std::vector<std::string>& class_names() const override { return clouds_->class_names; }
  std::string description() const override;
  void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const override;
  std::vector<int64_t> label_histogram() const override;

 private:
  const std::vector<uint32_t>& items() const { return split_ == Split::train ? clouds_->train : clouds_->test; }
  std::shared_ptr<const CloudCollection> clouds_;
  Split split_;
  Options options_;
  std::vector<uint32_t> kept_;  // of the stored points
};

}  // namespace sinkgrad
