// Idx files raw and gzipped, malformed ones, the MNIST layout, and the real sets where they are installed.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "core/file.h"
#include "datasets/gzip.h"
#include "datasets/idx.h"
#include "datasets/registry.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / cat("sinkgrad-test-idx-", ::getpid());
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
};

std::string bytes_of(std::initializer_list<int> values) {
  std::string out;
  for (int v : values) out += static_cast<char>(v);
  return out;
}

std::string idx_of(int type, std::initializer_list<int> dims, const std::string& data) {
  std::string out = bytes_of({0, 0, type, static_cast<int>(dims.size())});
  for (int d : dims) out += bytes_of({d >> 24, d >> 16, d >> 8, d});
  return out + data;
}

std::string refusal(const std::string& bytes) {
  try {
    parse_idx(bytes, "file");
  } catch (const InputError& e) {
    REQUIRE_THAT(e.what(), Catch::StartsWith("file: "));
    return e.what();
  }
  return "nothing thrown";
}

/// The idx labels 7 0 9, compressed by the gzip program.
const std::string kGzipped = bytes_of({0x1f, 0x8b, 0x08, 0,    0,    0,    0, 0,    0x02, 0x03, 0x63, 0x60, 0xe0, 0x60, 0x64, 0x60,
                                       0x60, 0x60, 0x66, 0x67, 0xe0, 0x04, 0, 0xa5, 0x12, 0xd3, 0x72, 0x0b, 0,    0,    0});

/// Two training and one test image of 1 x 2 pixels.
void write_tiny_set(const fs::path& folder) {
  write_file(folder / "train-images-idx3-ubyte", idx_of(0x08, {2, 1, 2}, bytes_of({0, 255, 51, 102})));
  write_file(folder / "train-labels-idx1-ubyte", idx_of(0x08, {2}, bytes_of({3, 9})));
  write_file(folder / "t10k-images-idx3-ubyte", idx_of(0x08, {1, 1, 2}, bytes_of({1, 2})));
  write_file(folder / "t10k-labels-idx1-ubyte", idx_of(0x08, {1}, bytes_of({0})));
}

/// Of the original train and test labels of MNIST.
const std::vector<int64_t> kMnistTrain = {5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949};
const std::vector<int64_t> kMnistTest = {980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009};

double mean_pixel(const DataSource& dataset, double* deviation) {
  BatchLoader loader(dataset, 1000, Purpose::evaluation);
  double sum = 0, squares = 0, count = 0;
  for (int64_t i = 0; i < loader.batches(); ++i) {
    const Batch batch = loader.load(0, i);
    for (int64_t j = 0; j < batch.inputs.count(); ++j) {
      const double x = batch.inputs.span<float>()[static_cast<size_t>(j)];
      sum += x, squares += x * x, ++count;
    }
  }
  *deviation = std::sqrt(squares / count - sum / count * (sum / count));
  return sum / count;
}

}  // namespace

TEST_CASE("all element types are read big-endian") {
  const auto values = [](const std::string& bytes) { return to_doubles(parse_idx(bytes, "file").tensor().view()); };
  REQUIRE(values(idx_of(0x08, {2}, bytes_of({1, 255}))) == std::vector<double>{1, 255});
  REQUIRE(values(idx_of(0x09, {2}, bytes_of({1, 255}))) == std::vector<double>{1, -1});
  REQUIRE(values(idx_of(0x0B, {2}, bytes_of({1, 2, 255, 254}))) == std::vector<double>{258, -2});
  REQUIRE(values(idx_of(0x0C, {1}, bytes_of({1, 2, 3, 4}))) == std::vector<double>{0x01020304});
  REQUIRE(values(idx_of(0x0D, {1}, bytes_of({0xc0, 0x20, 0, 0}))) == std::vector<double>{-2.5});
  REQUIRE(values(idx_of(0x0E, {1, 1}, bytes_of({0x3f, 0xf8, 0, 0, 0, 0, 0, 0}))) == std::vector<double>{1.5});
  REQUIRE(parse_idx(idx_of(0x08, {1, 2, 3}, "abcdef"), "file").shape == Shape{1, 2, 3});
  REQUIRE(parse_idx(idx_of(0x0D, {1}, "abcd"), "file").tensor().dtype() == DType::f32);
  REQUIRE(parse_idx(idx_of(0x0E, {1}, "abcdefgh"), "file").tensor().dtype() == DType::f64);
  REQUIRE(parse_idx(idx_of(0x08, {1}, "a"), "file").tensor().dtype() == DType::i32);
}

TEST_CASE("each malformed idx file has its own error: fault 67") {
  const std::string images = idx_of(0x08, {10, 2, 2}, std::string(40, 'x'));
  REQUIRE(refusal(images) == "nothing thrown");
  REQUIRE_THAT(refusal(""), Contains("4 bytes of magic, the file has 0"));
  REQUIRE_THAT(refusal("<html></html>"), Contains("not an idx file: it begins with 3c 68 74 6d"));
  REQUIRE_THAT(refusal(bytes_of({3, 8, 0, 0, 10, 0, 0, 0})), Contains("little-endian (03 08 00 00)"));
  REQUIRE_THAT(refusal(bytes_of({0, 0, 7, 1, 0, 0, 0, 1, 5})), Contains("unknown element type 07"));
  REQUIRE_THAT(refusal(bytes_of({0, 0, 8, 0, 5})), Contains("rank at byte 3 must be 1 to 6, got 0"));
  REQUIRE_THAT(refusal(bytes_of({0, 0, 8, 7, 5})), Contains("got 7"));
  REQUIRE_THAT(refusal(images.substr(0, 15)), Contains("ends inside the dimensions") && Contains("16 bytes") && Contains("15"));
  REQUIRE_THAT(refusal(images.substr(0, images.size() - 1)),
               Contains("truncated inside item 9 of 10: shape (10,2,2) of u8 needs 40 bytes") && Contains("the file has 39"));
  REQUIRE_THAT(refusal(images + "yz"), Contains("2 bytes too many"));
  REQUIRE_THAT(refusal(idx_of(0x08, {10, 0, 2}, "")), Contains("dimension 1 at byte 8 is zero"));
  // Promises of 2^62 and of more than 2^64 bytes: neither is allocated.
  REQUIRE_THAT(refusal(idx_of(0x08, {1 << 30, 1 << 30, 4}, "x")), Contains("truncated inside item 0"));
  REQUIRE_THAT(refusal(idx_of(0x0E, {1 << 30, 1 << 30, 1 << 30}, "x")), Contains("overflow"));
}

TEST_CASE("gzip is detected, and truncated, damaged, followed or too long streams are told apart: fault 67") {
  const Folder folder;
  write_file(folder.path / "labels", kGzipped);
  REQUIRE(to_doubles(read_idx(folder.path / "labels").tensor().view()) == std::vector<double>{7, 0, 9});
  const auto refused = [](const std::string& bytes, uint64_t limit = 1000) {
    try {
      return gunzip(bytes, "file", limit);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
  };
  REQUIRE(refused(kGzipped).size() == 11);
  REQUIRE(refused(kGzipped, 11).size() == 11);
  REQUIRE(refused(kGzipped + kGzipped).size() == 22);
  REQUIRE_THAT(refused(kGzipped, 10), Contains("at most 10 bytes"));
  for (size_t cut = 2; cut < kGzipped.size(); ++cut) REQUIRE(refused(kGzipped.substr(0, cut)) == "file: the gzip stream is truncated");
  std::string damaged = kGzipped;
  damaged[24] ^= 1;  // of the checksum
  REQUIRE_THAT(refused(damaged), Contains("damaged (incorrect data check)"));
  REQUIRE_THAT(refused(kGzipped + "xyz"), Contains("3 bytes that are not gzip follow"));
}

TEST_CASE("the MNIST layout is read, normalised and checked") {
  const Folder folder;
  write_tiny_set(folder.path);
  const json options = {{"folder", folder.path.string()}, {"mean", 0.2}, {"std", 0.5}};
  {
    const DataSplits splits = make_dataset("mnist", options);
    REQUIRE(splits.train->size() == 2);
    REQUIRE(splits.test->size() == 1);
    REQUIRE(splits.train->item_shape() == Shape{1, 1, 2});
    REQUIRE(splits.train->classes() == 10);
    REQUIRE(splits.train->label_histogram() == std::vector<int64_t>{0, 0, 0, 1, 0, 0, 0, 0, 0, 1});
    float inputs[4];
    int32_t labels[2];
    const uint32_t indices[] = {1, 0};
    const auto& train = dynamic_cast<const Dataset&>(*splits.train);
    train.load(indices, 0, inputs, labels);
    REQUIRE(labels[0] == 9);
    REQUIRE(labels[1] == 3);
    REQUIRE(inputs[0] == Approx(0).margin(1e-7));
    REQUIRE(inputs[1] == Approx(0.4));
    REQUIRE(inputs[2] == Approx(-0.4));
    REQUIRE(inputs[3] == Approx(1.6));
    const uint32_t beyond[] = {2};
    REQUIRE_THROWS_AS(train.load(beyond, 0, inputs, labels), Error);
  }
  json limited = options;
  limited["limit_train"] = 1;
  REQUIRE(make_dataset("mnist", limited).train->size() == 1);
  REQUIRE(make_dataset("mnist", limited).train->label_histogram() == std::vector<int64_t>{0, 0, 0, 1, 0, 0, 0, 0, 0, 0});

  const auto refused = [&](const char* file, const std::string& bytes) {
    write_tiny_set(folder.path);
    write_file(folder.path / file, bytes);
    try {
      make_dataset("mnist", options);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("nothing thrown");
  };
  REQUIRE_THAT(refused("train-labels-idx1-ubyte", idx_of(0x08, {1}, "\x03")),
               Contains("train-images-idx3-ubyte holds 2 images, but") && Contains("train-labels-idx1-ubyte holds 1 labels"));
  REQUIRE_THAT(refused("train-labels-idx1-ubyte", idx_of(0x08, {2}, "\x03\x0a")), Contains("label 1 is 10, must be below 10"));
  REQUIRE_THAT(refused("train-images-idx3-ubyte", idx_of(0x0D, {2, 1, 2}, std::string(16, 'x'))),
               Contains("images must be type 08 (u8) of rank 3, got type 0d"));
  REQUIRE_THAT(refused("train-images-idx3-ubyte", idx_of(0x08, {2}, "xy")), Contains("of rank 3") && Contains("shape (2)"));
  REQUIRE_THAT(refused("t10k-images-idx3-ubyte", idx_of(0x08, {1, 2, 2}, "wxyz")), Contains("(1,1,2)") && Contains("(1,2,2)"));
}

TEST_CASE("missing files are named, with where they come from") {
  const Folder folder;
  write_tiny_set(folder.path);
  fs::remove(folder.path / "train-labels-idx1-ubyte");
  const json options = {{"folder", folder.path.string()}};
  REQUIRE_THROWS_AS(make_dataset("mnist", options), IoError);
  REQUIRE_THROWS_WITH(make_dataset("mnist", options),
                      Contains(folder.path.string() + " lacks train-labels-idx1-ubyte (each may end in .gz)") && Contains("MNIST set"));
  REQUIRE_THROWS_WITH(make_dataset("fashion-mnist", {{"folder", "nowhere"}}),
                      Contains("lacks train-images-idx3-ubyte train-labels-idx1-ubyte") && Contains("Debian package dataset-fashion-mnist"));
}

TEST_CASE("unknown datasets and options are refused with the nearest name") {
  for (const char* name : {"mnist", "fashion-mnist", "shapes", "digits", "silhouettes", "modelnet40", "modelnet40-2048", "labeleddb", "cats-dogs",
                           "imdb", "translation", "number_words", "opinions"}) {
    const std::vector<std::string> names = dataset_names();
    REQUIRE(std::count(names.begin(), names.end(), name) == 1);
    REQUIRE(!dataset_description(name).summary.empty());
  }
  REQUIRE_THROWS_WITH(make_dataset("mnits", {}), Contains("unknown dataset 'mnits'; did you mean 'mnist'?"));
  REQUIRE_THROWS_WITH(make_dataset("shapes", {{"point", 3}}), Contains("no option 'point'; did you mean 'points'?"));
  REQUIRE_THROWS_WITH(make_dataset("shapes", {{"points", 2.5}}), Contains("'points' must be a non-negative integer, got 2.5"));
  REQUIRE_THROWS_WITH(make_dataset("shapes", {{"train", -1}}), Contains("'train'"));
  REQUIRE_THROWS_WITH(make_dataset("shapes", {{"augment", 1}}), Contains("'augment' must be true or false"));
  REQUIRE_THROWS_WITH(make_dataset("shapes", {{"pose", "uprigth"}}), Contains("unknown pose 'uprigth'; did you mean 'upright'?"));
  REQUIRE_THROWS_WITH(make_dataset("shapes", json::array({1})), Contains("JSON object"));
  REQUIRE_THROWS_AS(make_dataset("shapes", {{"points", "many"}}), InputError);
  REQUIRE(make_dataset("shapes", {{"noise", 1}, {"train", 3}, {"test", 2}}).train->size() == 3);
}

TEST_CASE("batches cover every item once, in an order fixed by seed and epoch: fault 61") {
  for (const auto& [items, batch_size, batches] : {std::array<int64_t, 3>{2468, 32, 78}, {1, 32, 1}, {64, 32, 2}, {65, 32, 3}}) {
    for (const Purpose purpose : {Purpose::training, Purpose::evaluation}) {
      BatchOrder order(items, batch_size, purpose, 5);
      REQUIRE(order.batches() == batches);
      std::vector<uint32_t> seen;
      for (int64_t i = 0; i < batches; ++i) {
        const auto indices = order.indices(3, i);
        REQUIRE(static_cast<int64_t>(indices.size()) == std::min(batch_size, items - i * batch_size));
        seen.insert(seen.end(), indices.begin(), indices.end());
      }
      std::vector<uint32_t> all(static_cast<size_t>(items));
      std::iota(all.begin(), all.end(), 0u);
      if (items > 1) REQUIRE((seen == all) == (purpose == Purpose::evaluation));
      std::sort(seen.begin(), seen.end());
      REQUIRE(seen == all);
    }
  }
  const auto first = [](uint64_t seed, std::vector<uint64_t> epochs) {
    BatchOrder order(100, 100, Purpose::training, seed);
    std::vector<uint32_t> indices;
    for (uint64_t epoch : epochs) indices.assign(order.indices(epoch, 0).begin(), order.indices(epoch, 0).end());
    return indices;
  };
  REQUIRE(first(1, {4}) == first(1, {0, 1, 4}));  // a resumed run sees what an uninterrupted one sees
  REQUIRE(first(1, {4}) != first(1, {5}));
  REQUIRE(first(1, {4}) != first(2, {4}));

  BatchOrder dropping(65, 32, Purpose::training, 0, true);
  REQUIRE(dropping.batches() == 2);
  REQUIRE_THROWS_AS(dropping.indices(0, 2), Error);
  REQUIRE_THROWS_WITH(BatchOrder(0, 32, Purpose::evaluation), Contains("got 0"));
  REQUIRE_THROWS_WITH(BatchOrder(3, 4, Purpose::training, 0, true), Contains("leaves no batch"));
  REQUIRE_THROWS_AS(BatchOrder(3, 0, Purpose::training), InputError);
}

TEST_CASE("MNIST itself") {
  const char* variable = std::getenv("SINKGRAD_DATA");
  const fs::path folder = fs::path(variable ? variable : SINKGRAD_SOURCE_DIR "/../shared/data") / "mnist";
  if (!fs::exists(folder)) {
    WARN("skipped: no " << folder << " (set SINKGRAD_DATA to the folder that holds mnist/)");
    return;
  }
  const DataSplits splits = make_dataset("mnist", {{"folder", fs::absolute(folder).string()}});
  REQUIRE(splits.train->label_histogram() == kMnistTrain);
  REQUIRE(splits.test->label_histogram() == kMnistTest);
  REQUIRE(splits.train->item_shape() == Shape{1, 28, 28});
  REQUIRE(splits.train->description() == "mnist train: 60000 images (1,28,28), 10 classes");
  double deviation = 0;
  REQUIRE(mean_pixel(*splits.train, &deviation) == Approx(0).margin(2e-4));
  REQUIRE(deviation == Approx(1).margin(2e-4));
}

TEST_CASE("Fashion-MNIST itself") {
  if (!fs::exists(dataset_defaults("fashion-mnist")["folder"].get<std::string>())) {
    WARN("skipped: the Debian package dataset-fashion-mnist is not installed");
    return;
  }
  const DataSplits splits = make_dataset("fashion-mnist", {});
  REQUIRE(splits.train->label_histogram() == std::vector<int64_t>(10, 6000));
  REQUIRE(splits.test->label_histogram() == std::vector<int64_t>(10, 1000));
  double deviation = 0;
  REQUIRE(mean_pixel(*splits.train, &deviation) == Approx(0).margin(2e-4));
  REQUIRE(deviation == Approx(1).margin(2e-4));
}
