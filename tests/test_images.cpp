// Photographs: decoding of every kind of JPEG, resizing as Pillow does it, folders, crops that repeat, and the drawn images.
#include <catch2/catch.hpp>
#include <cmath>

#include "datasets/jpeg.h"
#include "datasets/registry.h"
#include "datasets/resize.h"
#include "tiny_data.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

std::vector<int> first_pixel(const std::string& bytes) {
  const JpegImage decoded = decode_jpeg(bytes, "a.jpg");
  return {decoded.image.pixels[0], decoded.image.pixels[1], decoded.image.pixels[2]};
}

bool near(const std::vector<int>& a, const std::vector<int>& b) {
  for (size_t i = 0; i < 3; ++i)
    if (std::abs(a[i] - b[i]) > 3) return false;
  return true;
}

template <class Call>
std::string message(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

std::string refusal(const std::string& bytes) {
  return message([&] { decode_jpeg(bytes, "a.jpg"); });
}

/// One row of grey values, resized.
std::vector<int> resized(const std::vector<uint8_t>& row, int64_t width, CropBox box) {
  std::vector<uint8_t> rgb, out(static_cast<size_t>(3 * width));
  for (const uint8_t v : row) rgb.insert(rgb.end(), 3, v);
  resize_bilinear(rgb.data(), static_cast<int64_t>(row.size()), box, out.data(), 1, width);
  std::vector<int> values;
  for (size_t i = 0; i < out.size(); i += 3) values.push_back(out[i]);
  return values;
}

std::vector<float> item(const DataSource& data, uint32_t index, std::optional<uint64_t> epoch = {}) {
  std::vector<float> values(static_cast<size_t>(data.item_shape().count()));
  int32_t label = 0;
  dynamic_cast<const Dataset&>(data).load({&index, 1}, epoch, values.data(), &label);
  return values;
}

}  // namespace

TEST_CASE("fault 65: JPEG files of every kind decode, damaged ones are told from odd ones") {
  CHECK(near(first_pixel(tiny::jpeg(5, 3, {200, 30, 90})), {200, 30, 90}));
  CHECK(near(first_pixel(tiny::jpeg(5, 3, {200, 30, 90}, JCS_RGB, true)), {200, 30, 90}));
  CHECK(near(first_pixel(tiny::jpeg(1, 1, {9, 8, 7})), {9, 8, 7}));
  const JpegImage grey = decode_jpeg(tiny::jpeg(6, 4, {77}, JCS_GRAYSCALE), "a.jpg");
  CHECK(grey.colour == JpegColour::grey);
  CHECK((grey.image.width == 6 && grey.image.height == 4 && grey.image.pixels.size() == 72));
  CHECK(near({grey.image.pixels[69], grey.image.pixels[70], grey.image.pixels[71]}, {77, 77, 77}));
  // libjpeg marks CMYK as Adobe's, which is inverted: 255 is no ink. Cyan and half black: (0, 1, 1) times 128.
  const std::string cmyk = tiny::jpeg(8, 8, {0, 255, 255, 128}, JCS_CMYK);
  CHECK(decode_jpeg(cmyk, "a.jpg").colour == JpegColour::cmyk);
  CHECK(near(first_pixel(cmyk), {0, 128, 128}));

  // A picture with detail, so that half of the file is half of the data.
  const std::string whole = tiny::jpeg(400, 300, {10, 200, 30});
  CHECK(refusal(whole + std::string(40, '\x5a')) == "nothing thrown");
  CHECK_THAT(refusal(whole.substr(0, whole.size() * 3 / 4)), Contains("a.jpg: the JPEG file is damaged (Premature end"));
  CHECK_THAT(refusal(whole.substr(0, 100)), Contains("a.jpg: the JPEG file is damaged"));
  CHECK_THAT(refusal(""), Contains("a.jpg: is not a JPEG file, it is empty"));
  CHECK_THAT(refusal("GIF89a"), Contains("is not a JPEG file"));
  CHECK_THAT(refusal("\xFF\xD8"), Contains("damaged"));
  std::string stray = whole;  // two bytes before the end marker
  stray.insert(stray.size() - 2, "xx");
  CHECK(refusal(stray) == "nothing thrown");
  std::string large = whole;  // the frame header promises 30000 x 30000
  const size_t frame = large.find("\xFF\xC0");
  REQUIRE(frame != std::string::npos);
  large.replace(frame + 5, 4, "\x75\x30\x75\x30");
  CHECK_THAT(refusal(large), Contains("at most 100000000 pixels are read, the image has 30000 x 30000"));
}

TEST_CASE("resizing: values worked out by hand, a box that hides its surroundings, and the identity") {
  CHECK(resized({0, 255}, 4, {0, 0, 1, 2}) == std::vector<int>{0, 64, 191, 255});
  CHECK(resized({0, 100, 200, 40}, 2, {0, 0, 1, 4}) == std::vector<int>{71, 117});
  CHECK(resized({9, 0, 255, 77}, 4, {0, 1, 1, 2}) == std::vector<int>{0, 64, 191, 255});
  CHECK(resized({1, 2, 3, 250}, 4, {0, 0, 1, 4}) == std::vector<int>{1, 2, 3, 250});
  CHECK(resized({255, 255, 255}, 5, {0, 0, 1, 3}) == std::vector<int>(5, 255));
  std::vector<uint8_t> column = {0, 0, 0, 255, 255, 255}, out(12);
  resize_bilinear(column.data(), 1, {0, 0, 2, 1}, out.data(), 4, 1);
  CHECK((out[0] == 0 && out[3] == 64 && out[6] == 191 && out[11] == 255));
}

TEST_CASE("cats and dogs: both layouts, stratified splits, crops that depend on seed, epoch and item only") {
  const tiny::Folder kaggle, classes;
  tiny::write_cats_dogs(kaggle.path / "train", 11);
  for (int i = 0; i < 11; ++i) {
    tiny::write(classes.path / "Cat" / (std::to_string(i) + ".jpg"), tiny::jpeg(20, 20, {200, 0, 0}));
    tiny::write(classes.path / "Dog" / (std::to_string(i) + ".JPG"), tiny::jpeg(20, 20, {0, 0, 200}));
  }
  const auto open = [](const tiny::Folder& folder, json changes = json::object()) {
    json options = {{"folder", folder.path.string()}, {"size", 16}};
    options.update(changes);
    return make_dataset("cats-dogs", options);
  };
  const DataSplits data = open(kaggle);
  CHECK(data.train->class_names() == std::vector<std::string>{"cat", "dog"});
  CHECK(open(classes).train->class_names() == std::vector<std::string>{"Cat", "Dog"});
  CHECK(data.train->label_histogram() == std::vector<int64_t>{9, 9});
  CHECK(data.test->label_histogram() == std::vector<int64_t>{2, 2});
  CHECK(data.train->item_shape() == Shape{3, 16, 16});
  const auto red = item(*data.train, 0);
  CHECK(red[0] == Approx(220.0 / 255).margin(0.02));
  CHECK(red[2 * 256] == Approx(20.0 / 255).margin(0.02));

  const DataSplits last = open(kaggle, {{"split", "by_number"}});
  CHECK(item(*last.test, 0)[256] == Approx(180.0 / 255).margin(0.02));  // cat.9, whose green is 9 x 20
  CHECK(item(*last.test, 1)[256] == Approx(200.0 / 255).margin(0.02));
  CHECK(item(*data.train, 0, 1) == item(*data.train, 0, 1));

  // Detail to see crops and flips by: a photograph of a gradient would do, a cache written by hand is simpler to check.
  const tiny::Folder detailed;
  tiny::write_cats_dogs(detailed.path, 5);
  open(detailed);
  const tiny::fs::path cache = detailed.path / "sinkgrad-images-16.cache";
  std::string bytes = read_file(cache, 1 << 24);
  for (size_t i = 0; i < 6 * 256; ++i) bytes[64 + i] = static_cast<char>(i / 3 % 16 * 15);  // images 0 and 1: brighter to the right
  tiny::write(cache, bytes);
  const DataSplits seen = open(detailed, {{"split", "by_number"}});
  const auto whole = item(*seen.train, 0);
  CHECK(whole[15] == Approx(225.0 / 255));
  int flipped = 0, cropped = 0;
  for (uint64_t epoch = 0; epoch < 60; ++epoch) {
    const auto crop = item(*seen.train, 0, epoch);
    CHECK(crop == item(*seen.train, 0, epoch));
    flipped += crop[0] > crop[15];
    cropped += std::abs(crop[0] - crop[15]) < 0.9 * whole[15];
    CHECK(std::abs(crop[0] - crop[15]) > 0.1);  // at least about a quarter of the width
  }
  CHECK(item(*seen.train, 1) == whole);
  CHECK(item(*seen.train, 0, 1) != item(*seen.train, 1, 1));  // each item has a crop of its own
  CHECK((flipped > 15 && flipped < 45));
  const DataSplits gentle = open(detailed, {{"split", "by_number"}, {"crop_area", 0.9}}),
                   scaled = open(detailed, {{"split", "by_number"}, {"mean", 0.5}, {"std", 0.25}});
  for (uint64_t epoch = 0; epoch < 20; ++epoch) {
    const auto crop = item(*gentle.train, 0, epoch);
    CHECK(std::abs(crop[0] - crop[15]) > 0.7 * whole[15]);  // nine tenths of the area are at least 0.77 of the width
  }
  CHECK(item(*scaled.train, 0)[15] == Approx((whole[15] - 0.5) / 0.25));
  for (const json& wrong : {json{{"crop_area", 0.0}}, json{{"crop_area", 1.5}}, json{{"std", 0.0}}})
    CHECK_THROWS_AS(open(detailed, wrong), InputError);
  CHECK(cropped > 30);
  CHECK(item(*open(detailed, {{"split", "by_number"}, {"augment", false}}).train, 0, 3) == whole);
  const DataSplits released = open(detailed, {{"augment_test", true}, {"split", "by_number"}});
  CHECK(item(*released.test, 0) == item(*released.test, 0));
  CHECK(item(*released.train, 0) != whole);
  CHECK_THAT(message([&] { open(kaggle, {{"test_share", 0.01}}); }), Contains("leaves no training or no test image"));
  const tiny::Folder empty;
  CHECK_THAT(message([&] { open(empty); }), Contains("holds no CLASS.N.jpg") && Contains("kaggle"));
  for (int i = 0; i < 10; ++i) tiny::write(empty.path / cat("cat.", i, ".jpg"), tiny::jpeg(20, 20, {200, 0, 0}));
  CHECK_THAT(message([&] { open(empty); }), Contains("at least two classes") && Contains("cat alone"));
}

TEST_CASE("fault 65: broken, grey and CMYK files are named, and converted, left out or refused by option") {
  const tiny::Folder folder;
  tiny::write_cats_dogs(folder.path, 6);
  const std::string whole = tiny::jpeg(40, 40, {1, 200, 3});
  tiny::write(folder.path / "cat.2.jpg", whole.substr(0, whole.size() * 3 / 4));
  tiny::write(folder.path / "dog.1.jpg", "");
  tiny::write(folder.path / "cat.4.jpg", tiny::jpeg(10, 10, {90}, JCS_GRAYSCALE));
  tiny::write(folder.path / "dog.5.jpg", tiny::jpeg(10, 10, {0, 255, 255, 255}, JCS_CMYK));
  const auto open = [&](json options) {
    options.update({{"folder", folder.path.string()}, {"size", 8}, {"test_share", 0.3}, {"split", "by_number"}});
    return make_dataset("cats-dogs", options);
  };
  CHECK_THAT(
      message([&] {
        open({{"on_broken", "refuse"}});
      }),
      Contains("2 broken files (cat.2.jpg, dog.1.jpg), first: ") && Contains("cat.2.jpg: the JPEG file is damaged") && Contains("on_broken=skip"));
  CHECK(std::distance(tiny::fs::directory_iterator(folder.path), {}) == 12);  // no cache is left
  const DataSplits skipped = open({{"on_broken", "skip"}});
  CHECK_THAT(skipped.test->description(),
             Contains("2 broken files left out (cat.2.jpg, dog.1.jpg); 1 grey file (cat.4.jpg); 1 CMYK file (dog.5.jpg)"));
  CHECK(skipped.train->label_histogram()[0] + skipped.test->label_histogram()[0] == 5);
  // Labels stay with their images: the greens of dogs 0, 2, 3, 4 count on.
  CHECK(item(*skipped.train, 4)[64] == Approx(40.0 / 255).margin(0.02));
  CHECK_THAT(open({{"on_broken", "skip"}, {"on_grey", "skip"}}).train->description(), Contains("1 grey file left out (cat.4.jpg)"));
  CHECK_THAT(message([&] { open({{"on_broken", "skip"}, {"on_cmyk", "refuse"}}); }), Contains("1 CMYK file (dog.5.jpg)") && Contains("on_cmyk=skip"));
  CHECK_THAT(message([&] { open({{"on_broken", "convert"}}); }), Contains("cannot be converted"));
}

TEST_CASE("drawn images: each on its own, balanced, new ones in each epoch only when asked, classes that differ") {
  for (const char* name : {"digits", "silhouettes"}) {
    CAPTURE(name);
    const DataSplits data = make_dataset(name, {{"train", 45}, {"test", 21}}), more = make_dataset(name, {{"train", 46}, {"test", 5}});
    CHECK(data.train->size() == 45);
    CHECK(item(*data.train, 7) == item(*more.train, 7));
    CHECK(item(*data.train, 7) != item(*data.test, 7));
    CHECK(item(*data.train, 7, 3) == item(*data.train, 7));
    CHECK(item(*data.train, 7) != item(*data.train, 7 + static_cast<uint32_t>(data.train->classes())));
    const DataSplits fresh = make_dataset(name, {{"train", 45}, {"test", 5}, {"augment", true}});
    CHECK(item(*fresh.train, 7, 3) != item(*fresh.train, 7, 4));
    CHECK(item(*fresh.train, 7) == item(*data.train, 7));
    const std::vector<int64_t> counts = data.train->label_histogram();
    CHECK(counts[0] == (data.train->classes() == 10 ? 5 : 6));
    CHECK(counts.back() == (data.train->classes() == 10 ? 4 : 5));
    CHECK_THROWS_AS(make_dataset(name, {{"train", 0}}), InputError);
    CHECK_THROWS_AS(item(*data.train, 45), Error);
  }
  // Digits use the scale of MNIST's pixels: background near -0.42, ink near 2.8.
  const auto digit = item(*make_dataset("digits", {}).train, 0);
  CHECK(*std::min_element(digit.begin(), digit.end()) == Approx(-0.1307 / 0.3081).margin(1e-4));
  CHECK(*std::max_element(digit.begin(), digit.end()) > 2.4);
  for (const float x : item(*make_dataset("silhouettes", {{"size", 16}}).train, 5)) CHECK((x >= 0 && x <= 1));
}

TEST_CASE("the real cats and dogs") {
  const tiny::fs::path archive = tiny::real_data("cats-dogs/dogs-vs-cats_train_2002.tar.gz");
  if (archive.empty()) {
    WARN("skipped: no cats-dogs (set SINKGRAD_DATA to the folder of the real data)");
    return;
  }
  const tiny::Folder folder;
  tiny::unpack(archive, folder.path);
  tiny::fs::path images;
  for (const auto& entry : tiny::fs::recursive_directory_iterator(folder.path))
    if (entry.path().filename() == "cat.0.jpg") images = entry.path().parent_path();
  const DataSplits data = make_dataset("cats-dogs", {{"folder", images.string()}, {"size", 32}});
  CHECK(data.train->label_histogram() == std::vector<int64_t>{801, 801});
  CHECK(data.test->label_histogram() == std::vector<int64_t>{200, 200});
  CHECK(data.train->description() == "cats-dogs train: 1602 images (3,32,32), 2 classes");  // none of them is broken, grey or CMYK
}
