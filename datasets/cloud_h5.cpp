// ModelNet40 as HDF5: the authors' one file, and the folder modelnet40_ply_hdf5_2048 of PointNet.
#include <cmath>
#include <sstream>

#include "datasets/cloud_files.h"
#include "datasets/hdf5.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 64;  // clouds in memory at a time

/// Appends the clouds of one file to the collection and to the cache.
void append(const Hdf5File& file, const fs::path& path, const std::string& cloud_name, const std::string& label_name, bool test,
            CloudCollection& clouds, AtomicFile& out) {
  const Shape shape = file.shape(cloud_name);
  require<InputError>(shape.rank() == 3 && shape[2] == 3 && shape[0] > 0 && (clouds.points == 0 || clouds.points == shape[1]), path.string(), ": '",
                      cloud_name, "' must be (clouds, ", clouds.points > 0 ? std::to_string(clouds.points) : "points", ", 3), got ", shape);
  clouds.points = shape[1];
  const std::vector<int32_t> labels = file.read_integers(label_name);
  require<InputError>(static_cast<int64_t>(labels.size()) == shape[0], path.string(), ": '", label_name, "' must hold a label for each of the ",
                      shape[0], " clouds, got ", labels.size());
  const auto classes = static_cast<int32_t>(clouds.class_names.size());
  std::vector<float> block;
  for (int64_t first = 0; first < shape[0]; first += kBlock) {
    const int64_t n = std::min(kBlock, shape[0] - first);
    block.resize(static_cast<size_t>(n * shape.count(1, 3)));
    file.read_rows(cloud_name, first, first + n, block);
    for (size_t i = 0; i < block.size(); ++i)
      require<InputError>(std::isfinite(block[i]), path.string(), ": '", cloud_name, "' must hold finite numbers, got ", block[i], " in cloud ",
                          first + static_cast<int64_t>(i) / shape.count(1, 3));
    out.write(block.data(), block.size() * sizeof(float));
  }
  for (size_t i = 0; i < labels.size(); ++i) {
    require<InputError>(labels[i] >= 0 && labels[i] < classes, path.string(), ": labels must lie in 0..", classes - 1, ", got ", labels[i],
                        " for cloud ", i);
    (test ? clouds.test : clouds.train).push_back(static_cast<uint32_t>(clouds.labels.size()));
    clouds.labels.push_back(labels[i]);
  }
}

std::vector<std::string> lines_of(const fs::path& path) {
  constexpr uint64_t kLimit = 1 << 20;
  std::istringstream text(read_file(path, kLimit));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

/// The files of a split, from its list where there is one. The lists give paths of the machine they were made on.
std::vector<fs::path> ply_files(const fs::path& folder, const std::string& split) {
  const fs::path list = folder / (split + "_files.txt");
  std::error_code error;
  std::vector<fs::path> files;
  if (!fs::exists(list, error)) {
    for (const fs::path& path : files_by_number(folder, ".h5"))
      if (path.filename().string().starts_with("ply_data_" + split)) files.push_back(path);
  } else {
    for (const std::string& line : lines_of(list)) {
      files.push_back(folder / fs::path(line).filename());
      require<IoError>(fs::exists(files.back(), error), files.back().string(), ": ", list.filename().string(), " names this file, it is not there");
    }
  }
  require<IoError>(!files.empty(), folder.string(), ": holds no ply_data_", split, "*.h5; ", modelnet40_2048_description().origin);
  return files;
}

}  // namespace

CloudCollection read_cloud_h5(const fs::path& path, const std::string& cache_folder) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const std::string key = cache_key(folder, {path}, {{"layout", "ModelNet40_cloud.h5"}});
  return cached_clouds(cache_path(cache_folder, folder, "clouds-h5"), key, [&](AtomicFile& out) {
    CloudCollection clouds{.class_names = modelnet40_classes()};
    const Hdf5File file(path);
    for (const bool test : {false, true}) {
      const std::string prefix = test ? "test_" : "tr_";
      // The authors write tr_label, the code they started from tr_labels.
      append(file, path, prefix + "cloud", prefix + (file.has(prefix + "labels") ? "labels" : "label"), test, clouds, out);
    }
    return clouds;
  });
}

CloudCollection read_ply_h5(const fs::path& folder, const std::string& cache_folder) {
  const std::vector<fs::path> train = ply_files(folder, "train"), test = ply_files(folder, "test");
  std::vector<fs::path> sources = train;
  sources.insert(sources.end(), test.begin(), test.end());
  const fs::path names = folder / "shape_names.txt";
  std::error_code error;
  const bool has_names = fs::exists(names, error);
  if (has_names) sources.push_back(names);
  const std::string key = cache_key(folder, sources, {{"layout", "ply_data_{train,test}*.h5"}});
  return cached_clouds(cache_path(cache_folder, folder, "clouds"), key, [&](AtomicFile& out) {
    CloudCollection clouds{.class_names = has_names ? lines_of(names) : modelnet40_classes()};
    for (const auto& [files, is_test] : {std::pair(&train, false), std::pair(&test, true)})
      for (const fs::path& path : *files) append(Hdf5File(path), path, "data", "label", is_test, clouds, out);
    return clouds;
  });
}

DataDescription modelnet40_2048_description() {
  return {.summary = "ModelNet40 as 2,048 points of each mesh, 9,840 for training and 2,468 for test (Qi et al. 2017, PointNet)",
          .layout =
              "modelnet40_ply_hdf5_2048/ply_data_train0.h5 ..., ply_data_test0.h5 ... with the arrays data (N, 2048, 3) and label;\n"
              "train_files.txt, test_files.txt and shape_names.txt are used where they are",
          .origin = "modelnet40_ply_hdf5_2048.zip, unpacked, is needed (https://shapenet.cs.stanford.edu/media/modelnet40_ply_hdf5_2048.zip)",
          .files = {{.name = "../modelnet40_ply_hdf5_2048.zip", .url = "https://shapenet.cs.stanford.edu/media/modelnet40_ply_hdf5_2048.zip"}}};
}

}  // namespace sinkgrad
