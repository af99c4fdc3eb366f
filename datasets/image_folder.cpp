// The random resized crop is torchvision's: ten tries for an area of 8 (or crop_area) to 100 percent and proportions of 3:4 to 4:3, else the whole
// image.
#include "datasets/image_folder.h"

#include <cmath>
#include <exception>
#include <map>

#include "core/parallel.h"
#include "datasets/folders.h"
#include "datasets/jpeg.h"
#include "datasets/resize.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLargestFile = uint64_t{1} << 28;
constexpr size_t kBlock = 64;  // files in memory at a time

struct ImageFile {
  fs::path path;
  int32_t label;
};

std::vector<fs::path> jpeg_files(const fs::path& folder) {
  std::vector<fs::path> files = files_by_number(folder, ".jpg");
  const std::vector<fs::path> more = files_by_number(folder, ".jpeg");
  files.insert(files.end(), more.begin(), more.end());
  return files;
}

std::vector<ImageFile> find_images(const fs::path& folder, std::vector<std::string>& class_names) {
  std::vector<ImageFile> files;
  std::map<std::string, std::vector<fs::path>> by_class;
  for (const fs::path& place : {folder, folder / "train"}) {
    if (!by_class.empty()) break;
    for (const fs::path& path : jpeg_files(place)) {
      const std::string name = path.filename();
      by_class[name.substr(0, name.find('.'))].push_back(path);
    }
  }
  if (by_class.empty())
    for (const std::string& name : subfolders(folder))
      if (auto images = jpeg_files(folder / name); !images.empty()) by_class[name] = std::move(images);
  for (const auto& [name, paths] : by_class) {
    for (const fs::path& path : paths) files.push_back({path, static_cast<int32_t>(class_names.size())});
    class_names.push_back(name);
  }
  return files;
}

/// A file as it went into the block, or why it did not.
struct Reading {
  std::string broken;  // the message
  JpegColour colour = JpegColour::rgb;
  std::exception_ptr error;
};

Reading read_image(const fs::path& path, int64_t size, uint8_t* out) {
  Reading reading;
  try {
    const JpegImage decoded = decode_jpeg(read_file(path, kLargestFile), path.string());
    reading.colour = decoded.colour;
    const Image& image = decoded.image;
    resize_bilinear(image.pixels.data(), image.width, {0, 0, image.height, image.width}, out, size, size);
  } catch (const InputError& error) {
    reading.broken = error.what();
  } catch (...) {
    reading.error = std::current_exception();
  }
  return reading;
}

/// The files of one kind and what becomes of them.
struct Kind {
  const char* name;
  FilePolicy policy;
  std::vector<std::string> files = {};

  /// "3 broken files left out (cat.7.jpg, ...)"
  std::string text() const {
    constexpr size_t kShown = 10;
    std::string list;
    for (size_t i = 0; i < std::min(kShown, files.size()); ++i) list += (i ? ", " : "") + files[i];
    if (files.size() > kShown) list += ", ...";
    return cat(files.size(), ' ', name, files.size() == 1 ? " file" : " files", policy == FilePolicy::skip ? " left out (" : " (", list, ")");
  }
};

CropBox random_crop(int64_t size, double least_area, RandomStream& random) {
  const auto area = static_cast<double>(size * size);
  for (int i = 0; i < 10; ++i) {
    const double target = area * random.uniform(least_area, 1), aspect = std::exp(random.uniform(std::log(3.0 / 4), std::log(4.0 / 3)));
    const auto width = static_cast<int64_t>(std::lround(std::sqrt(target * aspect))),
               height = static_cast<int64_t>(std::lround(std::sqrt(target / aspect)));
    if (width < 1 || width > size || height < 1 || height > size) continue;
    const auto top = static_cast<int64_t>(random.below(static_cast<uint64_t>(size - height + 1)));
    const auto left = static_cast<int64_t>(random.below(static_cast<uint64_t>(size - width + 1)));
    return {top, left, height, width};
  }
  return {0, 0, size, size};
}

}  // namespace

ImageCollection read_images(const fs::path& folder, const ImageReading& reading) {
  require<InputError>(reading.size >= 1 && reading.size <= 4096, "images: size must be 1 to 4096, got ", reading.size);
  require<InputError>(reading.on_broken != FilePolicy::convert, "images: broken files cannot be converted, on_broken must be skip or refuse");
  ImageCollection images{.size = reading.size};
  const std::vector<ImageFile> files = find_images(folder, images.class_names);
  require<IoError>(!files.empty(), folder.string(), ": holds no CLASS.N.jpg and no CLASS/*.jpg; ", cats_dogs_description().origin);
  require<InputError>(images.class_names.size() > 1, folder.string(), ": images of at least two classes are needed, got those of ",
                      images.class_names.front(), " alone");
  std::vector<fs::path> paths;
  for (const ImageFile& f : files) paths.push_back(f.path);
  const nlohmann::json options = {{"size", reading.size}, {"broken", reading.on_broken}, {"grey", reading.on_grey}, {"cmyk", reading.on_cmyk}};

  const auto build = [&](AtomicFile& out) {
    Kind broken{"broken", reading.on_broken}, grey{"grey", reading.on_grey}, cmyk{"CMYK", reading.on_cmyk};
    std::string first_broken;
    const auto bytes = static_cast<size_t>(3 * reading.size * reading.size);
    std::vector<uint8_t> block(kBlock * bytes);
    std::vector<Reading> readings(kBlock);
    std::vector<int32_t> labels;
    for (size_t first = 0; first < files.size(); first += kBlock) {
      const size_t n = std::min(kBlock, files.size() - first);
      parallel_for(static_cast<int64_t>(n), 1, [&](int64_t begin, int64_t end) {
        for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
          readings[i] = read_image(files[first + i].path, reading.size, &block[bytes * i]);
      });
      for (size_t i = 0; i < n; ++i) {
        const Reading& r = readings[i];
        if (r.error) std::rethrow_exception(r.error);
        if (first_broken.empty()) first_broken = r.broken;
        Kind* const kind = !r.broken.empty() ? &broken : r.colour == JpegColour::grey ? &grey : r.colour == JpegColour::cmyk ? &cmyk : nullptr;
        if (kind) kind->files.push_back(files[first + i].path.lexically_relative(folder).string());
        if (kind && kind->policy != FilePolicy::convert) continue;
        labels.push_back(files[first + i].label);
        out.write(&block[bytes * i], bytes);
      }
    }
    std::string notes;
    for (const Kind* kind : {&broken, &grey, &cmyk}) {
      if (kind->files.empty()) continue;
      const bool is_broken = kind == &broken;
      require<InputError>(kind->policy != FilePolicy::refuse, folder.string(), ": ", kind->text(), is_broken ? ", first: " + first_broken : "",
                          "; the data option ",
                          is_broken       ? "on_broken"
                          : kind == &grey ? "on_grey"
                                          : "on_cmyk",
                          "=skip leaves them out");
      notes += (notes.empty() ? "" : "; ") + kind->text();
    }
    return nlohmann::json{{"labels", labels}, {"notes", notes}};
  };
  images.cache =
      CacheFile::open_or_build(cache_path(reading.cache_folder, folder, cat("images-", reading.size)), cache_key(folder, paths, options), build);
  images.labels = images.cache->meta().at("labels").get<std::vector<int32_t>>();
  images.notes = images.cache->meta().at("notes");
  return images;
}

ImageFolder::ImageFolder(std::shared_ptr<const ImageCollection> images, Split split, const Options& options)
    : images_(std::move(images)), split_(split), options_(options) {
  require<InputError>(options.test_share > 0 && options.test_share < 1, options.name, ": test_share must lie between 0 and 1, got ",
                      options.test_share);
  require<InputError>(options.crop_area > 0 && options.crop_area <= 1, options.name, ": crop_area must lie in (0, 1], got ", options.crop_area);
  require<InputError>(std::isfinite(options.mean) && options.std > 0, options.name, ": std must be positive, got ", options.std);
  const std::vector<int32_t>& labels = images_->labels;
  for (size_t c = 0; c < images_->class_names.size(); ++c) {
    std::vector<uint32_t> of_class;
    for (uint32_t i = 0; i < labels.size(); ++i)
      if (labels[i] == static_cast<int32_t>(c)) of_class.push_back(i);
    const auto tests = static_cast<size_t>(std::lround(options.test_share * static_cast<double>(of_class.size())));
    require<InputError>(tests > 0 && tests < of_class.size(), options.name, ": test_share ", options.test_share,
                        " leaves no training or no test image of ", of_class.size(), " in class ", images_->class_names[c]);
    std::vector<char> is_test(of_class.size());
    const std::vector<uint32_t> order =
        RandomStream(options.seed, "split " + images_->class_names[c]).permutation(static_cast<uint32_t>(of_class.size()));
    for (size_t k = 0; k < tests; ++k) is_test[options.random_split ? order[k] : of_class.size() - 1 - k] = 1;
    for (size_t k = 0; k < of_class.size(); ++k)
      if (is_test[k] == (split == Split::test)) items_.push_back(of_class[k]);
  }
}

std::string ImageFolder::description() const {
  return cat(options_.name, split_ == Split::train ? " train: " : " test: ", size(), " images ", item_shape(), ", ", classes(), " classes",
             images_->notes.empty() ? "" : "; " + images_->notes);
}

void ImageFolder::load_item(uint32_t index, std::optional<uint64_t> epoch, float* out) const {
  const int64_t n = images_->size;
  const uint8_t* image = images_->cache->data<uint8_t>().data() + 3 * n * n * items_[index];
  ScratchScope scratch;
  bool flip = false;
  if (epoch ? options_.augment : options_.augment_test) {
    const std::string_view stream = split_ == Split::train ? "training image" : "test image";
    RandomStream random(options_.seed, stream, epoch ? (*epoch + 1) << 32 | index : index);
    auto* cropped = scratch.take<uint8_t>(3 * n * n);
    resize_bilinear(image, n, random_crop(n, options_.crop_area, random), cropped, n, n);
    image = cropped;
    flip = random.next_u32() % 2 == 1;
  }
  const auto mean = static_cast<float>(options_.mean), std = static_cast<float>(options_.std);
  for (int64_t c = 0; c < 3; ++c)
    for (int64_t y = 0; y < n; ++y)
      for (int64_t x = 0; x < n; ++x) *out++ = (static_cast<float>(image[(y * n + (flip ? n - 1 - x : x)) * 3 + c]) / 255 - mean) / std;
}

void ImageFolder::load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const {
  for (const uint32_t index : indices) require(index < items_.size(), options_.name, ": item ", index, " is out of range, there are ", size());
  const int64_t count = item_shape().count();
  parallel_for(static_cast<int64_t>(indices.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint32_t index = indices[static_cast<size_t>(row)];
      load_item(index, epoch, inputs + count * row);
      labels[row] = images_->labels[items_[index]];
    }
  });
}

std::vector<int64_t> ImageFolder::label_histogram() const {
  std::vector<int64_t> counts(images_->class_names.size());
  for (const uint32_t item : items_) ++counts[static_cast<size_t>(images_->labels[item])];
  return counts;
}

DataDescription cats_dogs_description() {
  return {.summary = "Dogs vs. Cats: 25,000 labelled photographs of a Kaggle competition",
          .layout =
              "cats-dogs/cat.0.jpg ... cat.12499.jpg, dog.0.jpg ... (or those in cats-dogs/train), or cats-dogs/Cat/N.jpg and\n"
              "cats-dogs/Dog/N.jpg; a fifth of each class is the test set",
          .origin =
              "train.zip of https://www.kaggle.com/c/dogs-vs-cats, unpacked, is needed (an account is required); Microsoft's\n"
              "kagglecatsanddogs_5340.zip holds the same photographs as PetImages/{Cat,Dog}/N.jpg, some of them broken"};
}

}  // namespace sinkgrad
