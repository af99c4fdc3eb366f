// OFF files in class folders become clouds: each mesh is read, sampled and forgotten, a block of files at a time.
#include <exception>
#include <set>

#include "core/parallel.h"
#include "datasets/cloud_files.h"
#include "datasets/mesh.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLargestFile = uint64_t{1} << 30;
constexpr size_t kBlock = 64;  // files in memory at a time

struct MeshFile {
  fs::path path;
  int32_t label;
  bool test;
};

/// What is known of a file once it was read.
struct Reading {
  bool glued = false;
  std::pair<size_t, size_t> content = {};  // size and hash
  std::exception_ptr error = {};
};

Reading read_mesh(const MeshFile& file, const fs::path& folder, const MeshSampling& sampling, std::span<float> xyz) {
  Reading reading;
  try {
    const std::string bytes = read_file(file.path, kLargestFile);
    reading.content = {bytes.size(), std::hash<std::string_view>{}(bytes)};
    const Mesh mesh = parse_off(bytes, file.path.string());
    reading.glued = mesh.glued_header;
    sample_surface(mesh, RandomStream(sampling.seed, "surface " + file.path.lexically_relative(folder).generic_string()), xyz, file.path.string());
  } catch (...) {
    reading.error = std::current_exception();
  }
  return reading;
}

struct Selection {
  bool skip_glued = false, drop_duplicates = false;
};

/// Writes the clouds of the selected files, in their order.
CloudCollection sample_meshes(const fs::path& folder, const std::vector<MeshFile>& files, const std::vector<std::string>& class_names,
                              const MeshSampling& sampling, const Selection& selection, AtomicFile& out) {
  CloudCollection clouds{.points = sampling.points, .class_names = class_names};
  const auto count = static_cast<size_t>(3 * sampling.points);
  std::vector<float> block(kBlock * count);
  std::vector<Reading> readings(kBlock);
  std::set<std::pair<size_t, size_t>> contents;
  size_t glued = 0, duplicates = 0;
  for (size_t first = 0; first < files.size(); first += kBlock) {
    const size_t n = std::min(kBlock, files.size() - first);
    parallel_for(static_cast<int64_t>(n), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
        readings[i] = read_mesh(files[first + i], folder, sampling, std::span(block).subspan(count * i, count));
    });
    for (size_t i = 0; i < n; ++i) {
      if (readings[i].error) std::rethrow_exception(readings[i].error);
      const bool skipped = selection.skip_glued && readings[i].glued;
      const bool repeated = !skipped && !contents.insert(readings[i].content).second && selection.drop_duplicates;
      glued += skipped;
      duplicates += repeated;
      if (skipped || repeated) continue;
      (files[first + i].test ? clouds.test : clouds.train).push_back(static_cast<uint32_t>(clouds.labels.size()));
      clouds.labels.push_back(files[first + i].label);
      out.write(&block[count * i], count * sizeof(float));
    }
  }
  if (glued > 0) clouds.notes = cat(glued, " files with a glued header left out");
  if (duplicates > 0) clouds.notes = cat(duplicates, " repeated files left out");
  return clouds;
}

std::vector<fs::path> paths_of(const std::vector<MeshFile>& files) {
  std::vector<fs::path> paths;
  for (const MeshFile& f : files) paths.push_back(f.path);
  return paths;
}

nlohmann::json key_options(const char* layout, const MeshSampling& sampling) {
  return {{"layout", layout}, {"points", sampling.points}, {"seed", sampling.seed}};
}

void check(const MeshSampling& sampling) {
  require<InputError>(sampling.points >= 2 && sampling.points <= 1'000'000, "meshes: sampled points must be 2 to 1000000, got ", sampling.points);
}

}  // namespace

CloudCollection read_split_meshes(const fs::path& folder, const MeshSampling& sampling, bool skip_glued) {
  check(sampling);
  std::vector<MeshFile> files;
  std::vector<std::string> class_names;
  for (const std::string& name : subfolders(folder)) {
    const std::vector<fs::path> train = files_by_number(folder / name / "train", ".off"), test = files_by_number(folder / name / "test", ".off");
    if (train.empty() && test.empty()) continue;
    require<InputError>(!train.empty() && !test.empty(), (folder / name).string(), ": a class must hold train/*.off and test/*.off, got ",
                        train.size(), " and ", test.size(), " files");
    for (const fs::path& path : train) files.push_back({path, static_cast<int32_t>(class_names.size()), false});
    for (const fs::path& path : test) files.push_back({path, static_cast<int32_t>(class_names.size()), true});
    class_names.push_back(name);
  }
  require<IoError>(!files.empty(), folder.string(), ": holds no CLASS/train/*.off and CLASS/test/*.off; ", modelnet40_description().origin);
  nlohmann::json options = key_options("CLASS/{train,test}/*.off", sampling);
  options["skip_glued"] = skip_glued;
  return cached_clouds(cache_path(sampling.cache_folder, folder, "clouds"), cache_key(folder, paths_of(files), options),
                       [&](AtomicFile& out) { return sample_meshes(folder, files, class_names, sampling, {.skip_glued = skip_glued}, out); });
}

CloudCollection read_flat_meshes(const fs::path& folder, const MeshSampling& sampling, int64_t test_per_class, bool drop_duplicates) {
  check(sampling);
  std::vector<MeshFile> files;
  std::vector<std::string> class_names;
  for (const std::string& name : subfolders(folder)) {
    const std::vector<fs::path> paths = files_by_number(folder / name, ".off");
    for (const fs::path& path : paths) files.push_back({path, static_cast<int32_t>(class_names.size()), false});
    if (!paths.empty()) class_names.push_back(name);
  }
  require<IoError>(!files.empty(), folder.string(), ": holds no CLASS/N.off; ", labeleddb_description().origin);
  nlohmann::json options = key_options("CLASS/N.off", sampling);
  options["drop_duplicates"] = drop_duplicates;
  CloudCollection clouds =
      cached_clouds(cache_path(sampling.cache_folder, folder, "clouds"), cache_key(folder, paths_of(files), options),
                    [&](AtomicFile& out) { return sample_meshes(folder, files, class_names, sampling, {.drop_duplicates = drop_duplicates}, out); });
  // The split is no matter of the cache: clouds are in order of class and number.
  std::vector<int64_t> left(clouds.class_names.size());  // of each class, from here on
  for (const int32_t label : clouds.labels) ++left[static_cast<size_t>(label)];
  for (size_t c = 0; c < left.size(); ++c)
    require<InputError>(left[c] > test_per_class && test_per_class >= 1, folder.string(), ": test_per_class must be 1 to ", left[c] - 1,
                        " for the class ", clouds.class_names[c], " of ", left[c], " meshes, got ", test_per_class);
  clouds.train.clear();
  for (uint32_t i = 0; i < clouds.labels.size(); ++i)
    (left[static_cast<size_t>(clouds.labels[i])]-- <= test_per_class ? clouds.test : clouds.train).push_back(i);
  return clouds;
}

DataDescription modelnet40_description() {
  return {.summary = "ModelNet40: 9,843 training and 2,468 test meshes of 40 kinds of objects (Wu et al. 2015)",
          .layout =
              "ModelNet40/CLASS/train/CLASS_0001.off, ModelNet40/CLASS/test/..., or ModelNet40/ModelNet40_cloud.h5 with the arrays\n"
              "tr_cloud, test_cloud (N, points, 3) and tr_label, test_label",
          .origin = "ModelNet40.zip, unpacked, is needed (for academic use; http://modelnet.cs.princeton.edu)",
          .files = {{.name = "../ModelNet40.zip",
                     .url = "http://modelnet.cs.princeton.edu/ModelNet40.zip",
                     .hash = "md5",
                     .checksum = "79bcee68fdf02f581938ba15f4cdca51",
                     .bytes = 2'039'180'837}}};
}

DataDescription labeleddb_description() {
  return {.summary = "LabeledDB: meshes of 19 classes, 20 each (Kalogerakis et al. 2010, from the Princeton segmentation benchmark)",
          .layout = "LabeledDB_new/CLASS/N.off; the last 5 of each class by number are the test set",
          .origin = "LabeledDB_new is needed (https://people.cs.umass.edu/~kalo/papers/LabelMeshes/); label files beside the meshes are passed over"};
}

}  // namespace sinkgrad
