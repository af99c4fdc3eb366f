// Point clouds from meshes and HDF5: layouts, splits, the cache, what the paper does to a cloud, and every refusal.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "datasets/registry.h"
#include "tiny_data.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using nlohmann::json;
using tiny::fs::path;

namespace {

json with(const path& folder, json options = json::object()) {
  options["folder"] = folder.string();
  return options;
}

std::vector<float> item(const DataSource& data, uint32_t index, std::optional<uint64_t> epoch = {}, int32_t* label = nullptr) {
  std::vector<float> values(static_cast<size_t>(data.item_shape().count()));
  int32_t unused = 0;
  dynamic_cast<const Dataset&>(data).load({&index, 1}, epoch, values.data(), label ? label : &unused);
  return values;
}

std::vector<int32_t> labels(const DataSource& data) {
  std::vector<int32_t> all;
  for (uint32_t i = 0; i < data.size(); ++i) item(data, i, {}, &all.emplace_back());
  return all;
}

std::string message(const char* name, const json& options) {
  try {
    make_dataset(name, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

double mean(const std::vector<float>& x) { return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size()); }

/// Sorted points, to compare clouds as sets.
std::vector<std::array<float, 3>> points(const std::vector<float>& cloud) {
  std::vector<std::array<float, 3>> list;
  for (size_t i = 0; i < cloud.size(); i += 3) list.push_back({cloud[i], cloud[i + 1], cloud[i + 2]});
  std::sort(list.begin(), list.end());
  return list;
}

}  // namespace

TEST_CASE("ModelNet's tree: classes in order, splits by folder, glued headers read or left out") {
  const tiny::Folder folder;
  tiny::write_modelnet(folder.path, {"chair", "bed"}, 3, 2);
  tiny::write(folder.path / "README.txt", "not a class");
  tiny::fs::create_directories(folder.path / "empty");
  const json options = with(folder.path, {{"points", 100}, {"sampled", 200}});
  const DataSplits data = make_dataset("modelnet40", options);
  CHECK(data.train->class_names() == std::vector<std::string>{"bed", "chair"});
  CHECK(data.train->size() == 6);
  CHECK(data.test->size() == 4);
  CHECK(data.train->item_shape() == Shape{100, 3});
  CHECK(labels(*data.train) == std::vector<int32_t>{0, 0, 0, 1, 1, 1});
  CHECK(data.test->label_histogram() == std::vector<int64_t>{2, 2});
  CHECK(data.train->description() == "modelnet40 train: 6 clouds (100,3), 2 classes");

  json skipping = options;
  skipping["skip_glued"] = true;
  const DataSplits released = make_dataset("modelnet40", skipping);
  CHECK(released.train->label_histogram() == std::vector<int64_t>{3, 2});  // chair_0001.off is glued
  CHECK_THAT(released.train->description(), Contains("1 files with a glued header left out"));
  CHECK_THROWS_AS(item(*data.train, 6), Error);

  CHECK_THAT(message("modelnet40", with(folder.path, {{"points", 201}, {"sampled", 200}})), Contains("points must be 2 to 200"));
  CHECK_THAT(message("modelnet40", with(folder.path, {{"normalise", "standardize"}})), Contains("did you mean 'standardise'?"));
  CHECK_THAT(message("modelnet40", with(folder.path / "nowhere")), Contains("nowhere: holds no CLASS/train/*.off") && Contains("ModelNet40.zip"));
  tiny::write(folder.path / "bed/test/bed_0009.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n");
  CHECK_THAT(message("modelnet40", options), Contains("bed_0009.off:2: 3 vertices"));
}

TEST_CASE("a class of ModelNet's tree without a test or without a training mesh is refused by name") {
  for (const char* split : {"test", "train"}) {
    const tiny::Folder folder;
    tiny::write_modelnet(folder.path, {"airplane", "bathtub"}, 2, 1);
    tiny::fs::remove_all(folder.path / "bathtub" / split);
    CHECK_THAT(message("modelnet40", {{"folder", folder.path.string()}}), Contains("bathtub: a class must hold train/*.off and test/*.off, got ") &&
                                                                              Contains(split == std::string("test") ? "2 and 0" : "0 and 1"));
    CHECK(tiny::fs::is_directory(folder.path / "airplane"));
    CHECK(std::distance(tiny::fs::directory_iterator(folder.path), {}) == 2);  // no cache is left
  }
}

TEST_CASE("a flat folder: the last by number are the test set, repeated files count once") {
  const tiny::Folder folder;
  for (int i = 1; i <= 12; ++i)
    for (const char* name : {"Ant", "Cup"}) tiny::write(folder.path / name / (std::to_string(i) + ".off"), tiny::tetrahedron(i));
  tiny::write(folder.path / "Ant/13.off", tiny::tetrahedron(99));
  tiny::write(folder.path / "Ant/13_labels.txt", "1 2 3");
  const json options = with(folder.path, {{"points", 50}, {"sampled", 50}, {"test_per_class", 3}, {"normalise", "none"}, {"drop_duplicates", false}});
  const DataSplits data = make_dataset("labeleddb", options);
  CHECK(data.train->label_histogram() == std::vector<int64_t>{10, 9});
  CHECK(data.test->label_histogram() == std::vector<int64_t>{3, 3});
  const std::vector<float> last = item(*data.test, 2);  // Ant/13, not Ant/9
  CHECK(*std::max_element(last.begin(), last.end()) > 20);

  CHECK(item(*data.train, 0) != item(*data.train, 10));  // equal meshes, but each has its own random stream

  json dropping = options;
  dropping["drop_duplicates"] = true;
  CHECK_THAT(message("labeleddb", dropping), Contains("class Cup of 0 meshes"));  // every Cup equals an Ant
  tiny::fs::remove_all(folder.path / "Cup");
  tiny::write(folder.path / "Ant/14.off", tiny::tetrahedron(1));
  CHECK_THAT(make_dataset("labeleddb", dropping).test->description(), Contains("test: 3 clouds") && Contains("1 repeated files left out"));
  CHECK_THAT(message("labeleddb", with(folder.path, {{"test_per_class", 14}, {"sampled", 50}, {"points", 50}})),
             Contains("test_per_class must be 1 to 12"));
}

TEST_CASE("clouds are made once, and again when a file or an option changes") {
  const tiny::Folder folder, elsewhere;
  tiny::write_modelnet(folder.path, {"a", "b"}, 2, 1);
  const json options = with(folder.path, {{"points", 20}, {"sampled", 40}});
  const auto first = item(*make_dataset("modelnet40", options).train, 1);
  const path cache = folder.path / "sinkgrad-clouds.cache";
  REQUIRE(tiny::fs::exists(cache));
  const auto written = tiny::fs::last_write_time(cache);
  CHECK(item(*make_dataset("modelnet40", options).train, 1) == first);
  CHECK(tiny::fs::last_write_time(cache) == written);

  // An item does not depend on the others: its random stream has its file's name.
  tiny::write(folder.path / "a/train/a_0000.off", tiny::tetrahedron(50));
  const DataSplits more = make_dataset("modelnet40", options);
  CHECK(tiny::fs::last_write_time(cache) != written);
  CHECK(more.train->size() == 5);
  CHECK(item(*more.train, 2) == first);
  json other = options;
  other["seed"] = 1;
  CHECK(item(*make_dataset("modelnet40", other).train, 2) != first);

  // A cut or foreign cache is made again, one whose sources only look the same is not read.
  std::string long_trailer = read_file(cache, 1 << 24);
  long_trailer.replace(long_trailer.size() - 8, 8, std::string(7, '\x7f') + '\0');
  for (const std::string& bytes :
       {std::string(), std::string("sinkgrad cache 1"), std::string(500, 'x'), long_trailer, read_file(cache, 1 << 24).substr(0, 700)}) {
    tiny::write(cache, bytes);
    CHECK(item(*make_dataset("modelnet40", options).train, 2) == first);
  }
  other = options;
  other["cache"] = (elsewhere.path / "deep/er").string();
  tiny::fs::remove(cache);
  CHECK(item(*make_dataset("modelnet40", other).train, 2) == first);
  CHECK_FALSE(tiny::fs::exists(cache));
  CHECK(std::distance(tiny::fs::directory_iterator(elsewhere.path / "deep/er"), {}) == 1);
  tiny::write(elsewhere.path / "file", "");
  other["cache"] = (elsewhere.path / "file").string();
  CHECK_THAT(message("modelnet40", other), Contains("creating the folder for cache files failed"));
}

TEST_CASE("the paper's pipeline: one subset of the points for all, standardised, rotated a little and stretched in training") {
  const tiny::Folder folder;
  tiny::write_modelnet(folder.path, {"a", "b"}, 2, 2);
  const auto data = [&](const json& changes) {
    json options = with(folder.path, {{"sampled", 60}, {"points", 60}, {"normalise", "none"}});
    options.update(changes);
    return make_dataset("modelnet40", options);
  };
  const DataSplits all = data(json::object()), third = data({{"points", 20}});
  const auto stored = item(*all.test, 1), kept = item(*third.test, 1);
  for (size_t i = 0; i < 20; ++i)
    for (size_t axis = 0; axis < 3; ++axis) CHECK(kept[3 * i + axis] == stored[3 * (1 + 3 * i) + axis]);  // points 1, 4, 7, ...
  // Training: the same places of each cloud, and of each epoch.
  std::vector<size_t> places[2];
  for (const uint32_t index : {0u, 3u}) {
    const auto whole = item(*all.train, index), part = item(*third.train, index, 5);
    for (size_t i = 0; i < 20; ++i)
      for (size_t k = 0; k < 60; ++k)
        if (std::equal(&part[3 * i], &part[3 * i] + 3, &whole[3 * k])) places[index == 3].push_back(k);
  }
  // The order of all points of a training item is random, too.
  CHECK(points(item(*all.train, 0)).size() == 60);
  CHECK(places[0] == places[1]);
  CHECK(places[0].size() == 20);

  const DataSplits standard = data({{"normalise", "standardise"}, {"augment", "rotate_scale"}});
  const auto plain = item(*standard.train, 1), raw = item(*all.train, 1);
  CHECK(mean(plain) == Approx(0).margin(1e-6));
  double squares = 0;
  for (const float x : plain) squares += x * x;
  CHECK(squares / 180 == Approx(1).margin(1e-5));
  const float ratio = (plain[3] - plain[0]) / (raw[3] - raw[0]);  // one scale for all axes
  CHECK((plain[5] - plain[2]) == Approx(ratio * (raw[5] - raw[2])).epsilon(1e-3));

  // x' = scale_x (c x - s y) and so on, with |angle| <= 0.1 pi: found by least squares from the points.
  const auto turned = item(*standard.train, 1, 7);
  CHECK(turned == item(*standard.train, 1, 7));
  CHECK(turned != item(*standard.train, 1, 8));
  CHECK(turned != item(*standard.train, 2, 7));
  CHECK(item(*standard.test, 1) == item(*standard.test, 1));
  const double z_scale = turned[2] / plain[2];
  CHECK((z_scale >= 0.8 && z_scale <= 1.25));
  double xx = 0, xy = 0, yy = 0, ux = 0, uy = 0, vx = 0, vy = 0;
  for (size_t i = 0; i < 180; i += 3) {
    const double x = plain[i], y = plain[i + 1], u = turned[i], v = turned[i + 1];
    xx += x * x, xy += x * y, yy += y * y, ux += u * x, uy += u * y, vx += v * x, vy += v * y;
    CHECK(turned[i + 2] == Approx(z_scale * plain[i + 2]).margin(1e-5));
  }
  const double det = xx * yy - xy * xy, a = (ux * yy - uy * xy) / det, b = (uy * xx - ux * xy) / det, c = (vx * yy - vy * xy) / det,
               d = (vy * xx - vx * xy) / det;
  const double angle = std::atan2(-b, a);
  CHECK(std::abs(angle) <= 0.1 * 3.1416);
  CHECK(std::atan2(c, d) == Approx(angle).margin(1e-4));
  for (const double scale : {std::hypot(a, b), std::hypot(c, d)}) CHECK((scale > 0.799 && scale < 1.251));
}

TEST_CASE("upstream's augmentation of the PCT: dropped points join point 0, then scale, shift and a new order") {
  const tiny::Folder folder;
  tiny::write_modelnet(folder.path, {"a", "b"}, 2, 2);
  const json options = with(folder.path, {{"sampled", 400}, {"points", 400}, {"normalise", "unit_sphere"}, {"augment", "dropout_scale_shift"}});
  const DataSplits data = make_dataset("modelnet40", options);
  const auto plain = item(*data.train, 0);
  double farthest = 0, centre = 0;
  for (size_t i = 0; i < plain.size(); i += 3) {
    farthest = std::max<double>(farthest, std::hypot(plain[i], plain[i + 1], plain[i + 2]));
    centre += plain[i];
  }
  CHECK(farthest == Approx(1).margin(1e-5));
  CHECK(centre / 400 == Approx(0).margin(1e-5));
  double least = 1, most = 0;
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {
    const auto moved = points(item(*data.train, 0, epoch));
    size_t largest = 0;  // points in one place
    for (size_t begin = 0, end; begin < moved.size(); begin = end) {
      for (end = begin; end < moved.size() && moved[end] == moved[begin];) ++end;
      largest = std::max(largest, end - begin);
    }
    const double share = static_cast<double>(largest - 1) / 400;
    least = std::min(least, share), most = std::max(most, share);
  }
  CHECK(least < 0.3);
  CHECK(most > 0.5);
  CHECK(most < 0.95);
  CHECK(item(*data.train, 0, 1) == item(*data.train, 0, 1));
}

TEST_CASE("ModelNet40_cloud.h5: both spellings of the labels, any number type, and its mistakes") {
  for (const char* plural : {"", "s"}) {
    const tiny::Folder folder;
    const path file = folder.path / "ModelNet40_cloud.h5";
    const auto train = tiny::clouds<double>(5, 30, "train");
    tiny::write_h5(file, "tr_cloud", {5, 30, 3}, train);
    tiny::write_h5(file, "tr_label" + std::string(plural), {5}, std::vector<int32_t>{3, 39, 0, 7, 7});
    tiny::write_h5(file, "test_cloud", {2, 30, 3}, tiny::clouds<double>(2, 30, "test"));
    tiny::write_h5(file, "test_label" + std::string(plural), {2, 1}, std::vector<int32_t>{1, 2});
    const DataSplits data = make_dataset("modelnet40", with(folder.path, {{"points", 30}, {"normalise", "none"}}));
    CHECK(labels(*data.train) == std::vector<int32_t>{3, 39, 0, 7, 7});
    CHECK(labels(*data.test) == std::vector<int32_t>{1, 2});
    CHECK(data.train->classes() == 40);
    std::vector<float> expected(train.begin() + 90, train.begin() + 180);
    CHECK(points(item(*data.train, 1)) == points(expected));
  }
  // More than are read at a time.
  const tiny::Folder many;
  const auto clouds = tiny::clouds<float>(130, 4, "many");
  for (const char* split : {"tr", "test"}) {
    tiny::write_h5(many.path / "ModelNet40_cloud.h5", std::string(split) + "_cloud", {130, 4, 3}, clouds);
    tiny::write_h5(many.path / "ModelNet40_cloud.h5", std::string(split) + "_label", {130}, std::vector<int32_t>(130, 1));
  }
  const DataSplits data = make_dataset("modelnet40", with(many.path, {{"points", 4}, {"normalise", "none"}}));
  for (const uint32_t i : {0u, 63u, 64u, 129u})
    CHECK(item(*data.test, i) == std::vector<float>(clouds.begin() + 12 * i, clouds.begin() + 12 * i + 12));

  const auto refused = [](const char* changed, const Shape& shape, auto values) {
    const tiny::Folder folder;
    const path file = folder.path / "ModelNet40_cloud.h5";
    for (const char* split : {"tr", "test"}) {
      const std::string cloud = std::string(split) + "_cloud", label = std::string(split) + "_label";
      if (cloud == changed)
        tiny::write_h5(file, cloud, shape, values);
      else
        tiny::write_h5(file, cloud, {2, 4, 3}, tiny::clouds<float>(2, 4, split));
      if (label == changed)
        tiny::write_h5(file, label, shape, values);
      else if (changed != "no " + label)
        tiny::write_h5(file, label, {2}, std::vector<int32_t>{0, 1});
    }
    const std::string text = message("modelnet40", with(folder.path, {{"points", 4}}));
    CHECK(std::distance(tiny::fs::directory_iterator(folder.path), {}) == 1);  // no half cache is left
    return text;
  };
  CHECK_THAT(refused("test_cloud", {2, 5, 3}, tiny::clouds<float>(2, 5, "x")), Contains("'test_cloud' must be (clouds, 4, 3), got (2,5,3)"));
  CHECK_THAT(refused("tr_cloud", {2, 12}, tiny::clouds<float>(2, 4, "x")), Contains("'tr_cloud' must be (clouds, points, 3), got (2,12)"));
  CHECK_THAT(refused("tr_cloud", {1, 2, 3}, std::vector<float>{0, 0, 0, 0, 0, std::nanf("")}), Contains("finite") || Contains("a label for each"));
  CHECK_THAT(refused("tr_label", {3}, std::vector<int32_t>{0, 1, 2}), Contains("a label for each of the 2 clouds, got 3"));
  CHECK_THAT(refused("tr_label", {2}, std::vector<int32_t>{0, 40}), Contains("labels must lie in 0..39, got 40 for cloud 1"));
  CHECK_THAT(refused("tr_label", {2}, std::vector<float>{0, 1}), Contains("'tr_label' must hold integers"));
  CHECK_THAT(refused("no test_label", {}, std::vector<float>{}), Contains("has no array 'test_label'"));

  const tiny::Folder folder;
  const path file = folder.path / "ModelNet40_cloud.h5";
  {
    // Chunks that were never written take no room in the file, which so claims two billion clouds.
    const hsize_t dims[] = {2'000'000'000, 4, 3}, chunk[] = {1, 4, 3};
    const hid_t plan = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(3, dims, nullptr);
    H5Pset_chunk(plan, 3, chunk);
    const hid_t made = H5Fcreate(file.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, H5P_DEFAULT);
    H5Dclose(H5Dcreate2(made, "tr_cloud", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, plan, H5P_DEFAULT));
    H5Sclose(space);
    H5Pclose(plan);
    H5Fclose(made);
  }
  CHECK_THAT(message("modelnet40", with(folder.path)),
             Contains("'tr_cloud' has more elements than a file of this size can hold, dimension 0 is 2000000000"));
  tiny::write(file, "not HDF5");
  CHECK_THAT(message("modelnet40", with(folder.path)), Contains("ModelNet40_cloud.h5: is not an HDF5 file"));
  tiny::fs::remove(file);
  REQUIRE(::mkfifo(file.c_str(), 0600) == 0);
  CHECK_THAT(message("modelnet40", with(folder.path)), Contains("ModelNet40_cloud.h5: must be a regular file, it is a pipe"));
  tiny::fs::remove(file);
  tiny::write_h5(file, "tr_cloud", {20, 40, 3}, tiny::clouds<float>(20, 40, "x"));
  tiny::write(file, read_file(file, 1 << 24).substr(0, 3000));
  CHECK_THAT(message("modelnet40", with(folder.path)), Contains("opening failed: ") && Contains("truncated"));
}

TEST_CASE("modelnet40_ply_hdf5_2048: lists, names, and files found without lists") {
  const tiny::Folder folder;
  const auto first = tiny::clouds<float>(2, 8, "0"), second = tiny::clouds<float>(1, 8, "1");
  tiny::write_h5(folder.path / "ply_data_train0.h5", "data", {2, 8, 3}, first);
  tiny::write_h5(folder.path / "ply_data_train0.h5", "label", {2, 1}, std::vector<uint8_t>{4, 5});
  tiny::write_h5(folder.path / "ply_data_train1.h5", "data", {1, 8, 3}, second);
  tiny::write_h5(folder.path / "ply_data_train1.h5", "label", {1, 1}, std::vector<uint8_t>{6});
  tiny::write_h5(folder.path / "ply_data_test0.h5", "data", {1, 8, 3}, tiny::clouds<float>(1, 8, "2"));
  tiny::write_h5(folder.path / "ply_data_test0.h5", "label", {1, 1}, std::vector<uint8_t>{7});
  const json options = with(folder.path, {{"points", 5}});
  CHECK(labels(*make_dataset("modelnet40-2048", options).train) == std::vector<int32_t>{4, 5, 6});
  CHECK(make_dataset("modelnet40-2048", options).train->class_names()[4] == "bookshelf");
  // The lists decide on the order; they were made elsewhere.
  tiny::write(folder.path / "train_files.txt",
              "data/modelnet40_ply_hdf5_2048/ply_data_train1.h5\r\ndata/modelnet40_ply_hdf5_2048/ply_data_train0.h5\n");
  std::string names;
  for (int i = 0; i < 8; ++i) names += "kind" + std::to_string(i) + "\n";
  tiny::write(folder.path / "shape_names.txt", names);
  const DataSplits data = make_dataset("modelnet40-2048", options);
  CHECK(labels(*data.train) == std::vector<int32_t>{6, 4, 5});
  CHECK(data.train->class_names()[4] == "kind4");
  CHECK(item(*data.train, 1) == std::vector<float>(first.begin(), first.begin() + 15));  // the first five points
  tiny::write(folder.path / "test_files.txt", "x/ply_data_test9.h5\n");
  CHECK_THAT(message("modelnet40-2048", options), Contains("ply_data_test9.h5: test_files.txt names this file"));
  CHECK_THAT(message("modelnet40-2048", with(folder.path / "nowhere")), Contains("holds no ply_data_train*.h5"));
}

TEST_CASE("LabeledDB itself") {
  const path archives[] = {tiny::real_data("shapes-labeleddb/LabeledDB_A_10x20.tar.gz")};
  if (archives[0].empty()) {
    WARN("skipped: no shapes-labeleddb (set SINKGRAD_DATA to the folder of the real data)");
    return;
  }
  const tiny::Folder folder;
  tiny::unpack(archives[0], folder.path);
  path classes;
  for (const auto& entry : tiny::fs::recursive_directory_iterator(folder.path))
    if (entry.path().filename() == "Octopus") classes = entry.path().parent_path();
  const DataSplits data = make_dataset("labeleddb", with(classes, {{"sampled", 500}, {"points", 250}}));
  CHECK(data.train->classes() == 10);
  CHECK(data.test->label_histogram() == std::vector<int64_t>(10, 5));
  CHECK(data.train->size() == 200 - 50 - 2);
  CHECK_THAT(data.train->description(), Contains("2 repeated files left out"));
}
