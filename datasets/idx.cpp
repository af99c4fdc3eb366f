// Every length is checked against the bytes at hand before anything is allocated.
#include "datasets/idx.h"

#include <array>
#include <bit>
#include <cstdio>
#include <cstring>

#include "datasets/gzip.h"

namespace sinkgrad {
namespace {

struct ElementType {
  IdxType code;
  const char* name;
  size_t bytes;
};
constexpr std::array kTypes = {
    ElementType{IdxType::u8, "u8", 1},   ElementType{IdxType::i8, "i8", 1},   ElementType{IdxType::i16, "i16", 2},
    ElementType{IdxType::i32, "i32", 4}, ElementType{IdxType::f32, "f32", 4}, ElementType{IdxType::f64, "f64", 8},
};

const ElementType* find_type(uint8_t code) {
  for (const ElementType& t : kTypes)
    if (static_cast<uint8_t>(t.code) == code) return &t;
  return nullptr;
}

uint8_t byte_at(std::string_view bytes, size_t i) { return static_cast<uint8_t>(bytes[i]); }

std::string hex(std::string_view bytes) {
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", unsigned{byte_at(bytes, i)});
    out += cat(i ? " " : "", digits);
  }
  return out;
}

template <class To, class From>
Tensor convert(const IdxArray& array) {
  Tensor t(array.shape, dtype_of<To>());
  const char* from = array.bytes.data();
  for (To& value : t.span<To>()) {
    From element;
    std::memcpy(&element, from, sizeof element);
    from += sizeof element;
    value = static_cast<To>(element);
  }
  return t;
}

/// `stem` or `stem`.gz, whichever exists; empty when neither does.
std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& stem) {
  std::error_code ignored;
  for (const char* suffix : {"", ".gz"})
    if (const auto path = folder / (stem + suffix); std::filesystem::exists(path, ignored)) return path;
  return {};
}

void require_bytes(const IdxArray& array, int rank, const std::filesystem::path& path, const char* what) {
  require<InputError>(array.type == IdxType::u8 && array.shape.rank() == rank, path.string(), ": ", what, " must be type 08 (u8) of rank ", rank,
                      ", got type ", hex(std::string(1, static_cast<char>(array.type))), " and shape ", array.shape);
}

}  // namespace

Tensor IdxArray::tensor() const {
  switch (type) {
    case IdxType::u8: return convert<int32_t, uint8_t>(*this);
    case IdxType::i8: return convert<int32_t, int8_t>(*this);
    case IdxType::i16: return convert<int32_t, int16_t>(*this);
    case IdxType::i32: return convert<int32_t, int32_t>(*this);
    case IdxType::f32: return convert<float, float>(*this);
    case IdxType::f64: return convert<double, double>(*this);
  }
  throw Error("idx: unknown element type");
}

IdxArray parse_idx(std::string_view bytes, const std::string& path) {
  require<InputError>(bytes.size() >= 4, path, ": an idx file begins with 4 bytes of magic, the file has ", bytes.size());
  const std::string_view magic = bytes.substr(0, 4);
  require<InputError>(!(magic.ends_with(std::string_view("\0\0", 2)) && find_type(byte_at(magic, 1)) && magic[0] != 0), path,
                      ": the magic is little-endian (", hex(magic), "), idx files are big-endian");
  require<InputError>(magic.starts_with(std::string_view("\0\0", 2)), path, ": not an idx file: it begins with ", hex(magic),
                      ", required is 00 00 and the element type and the rank");
  const ElementType* type = find_type(byte_at(magic, 2));
  require<InputError>(type, path, ": unknown element type ", hex(magic.substr(2, 1)), " at byte 2; known are 08, 09, 0b, 0c, 0d and 0e");
  const size_t rank = byte_at(magic, 3), header = 4 + 4 * rank;
  require<InputError>(rank >= 1 && rank <= Shape::kMaxRank, path, ": the rank at byte 3 must be 1 to ", Shape::kMaxRank, ", got ", rank);
  require<InputError>(bytes.size() >= header, path, ": the file ends inside the dimensions: ", rank, " of them need ", header,
                      " bytes, the file has ", bytes.size());

  IdxArray array{type->code, Shape{}, {}};
  uint64_t wanted = type->bytes;
  for (size_t i = 0; i < rank; ++i) {
    uint32_t dimension = 0;
    for (size_t j = 0; j < 4; ++j) dimension = dimension << 8 | byte_at(bytes, 4 + 4 * i + j);
    require<InputError>(dimension > 0, path, ": dimension ", i, " at byte ", 4 + 4 * i, " is zero");
    require<InputError>(wanted <= INT64_MAX / dimension, path, ": the dimensions overflow 64 bits");
    wanted *= dimension;
    array.shape.push_back(dimension);
  }
  // Nothing was allocated for what the header promises: the bytes are there or this throws.
  const std::string_view data = bytes.substr(header);
  const uint64_t items = static_cast<uint64_t>(array.shape[0]);
  require<InputError>(data.size() >= wanted, path, ": truncated inside item ", data.size() / (wanted / items), " of ", items, ": shape ", array.shape,
                      " of ", type->name, " needs ", wanted, " bytes after the header, the file has ", data.size());
  require<InputError>(data.size() == wanted, path, ": ", data.size() - wanted, " bytes too many: shape ", array.shape, " of ", type->name, " needs ",
                      wanted, " bytes after the header, the file has ", data.size());

  array.bytes = data;
  if constexpr (std::endian::native == std::endian::little)
    for (size_t i = 0; type->bytes > 1 && i < array.bytes.size(); i += type->bytes)
      std::reverse(array.bytes.begin() + static_cast<ptrdiff_t>(i), array.bytes.begin() + static_cast<ptrdiff_t>(i + type->bytes));
  return array;
}

IdxArray read_idx(const std::filesystem::path& path, uint64_t max_bytes) { return parse_idx(read_maybe_gzip(path, max_bytes), path.string()); }

ImageClassification::ImageClassification(const std::filesystem::path& folder, const std::string& split, Options options)
    : options_(std::move(options)), split_(split) {
  require<InputError>(options_.std > 0 && options_.limit >= 0, options_.name, ": std must be positive and limit not negative, got ", options_.std,
                      " and ", options_.limit);
  const std::string image_stem = split + "-images-idx3-ubyte", label_stem = split + "-labels-idx1-ubyte";
  const std::filesystem::path image_path = find_file(folder, image_stem), label_path = find_file(folder, label_stem);
  require<IoError>(!image_path.empty() && !label_path.empty(), options_.name, ": ", folder.string(), " lacks",
                   image_path.empty() ? " " + image_stem : "", label_path.empty() ? " " + label_stem : "", " (each may end in .gz); ",
                   options_.source);

  images_ = read_idx(image_path);
  labels_ = read_idx(label_path);
  require_bytes(images_, 3, image_path, "images");
  require_bytes(labels_, 1, label_path, "labels");
  require<InputError>(images_.shape[0] == labels_.shape[0], image_path.string(), " holds ", images_.shape[0], " images, but ", label_path.string(),
                      " holds ", labels_.shape[0], " labels");
  for (size_t i = 0; i < labels_.bytes.size(); ++i)
    require<InputError>(byte_at(labels_.bytes, i) < classes(), label_path.string(), ": label ", i, " is ", unsigned{byte_at(labels_.bytes, i)},
                        ", must be below ", classes());
  size_ = options_.limit > 0 ? std::min(options_.limit, images_.shape[0]) : images_.shape[0];
}

std::string ImageClassification::description() const {
  return cat(options_.name, " ", split_, ": ", size_, " images ", item_shape(), ", ", classes(), " classes");
}

void ImageClassification::load(std::span<const uint32_t> indices, std::optional<uint64_t>, float* inputs, int32_t* labels) const {
  std::array<float, 256> value_of;
  for (size_t pixel = 0; pixel < value_of.size(); ++pixel)
    value_of[pixel] = static_cast<float>((static_cast<double>(pixel) / 255 - options_.mean) / options_.std);
  const auto pixels = static_cast<size_t>(item_shape().count());
  for (const uint32_t index : indices) {
    require(index < size_, options_.name, ": item ", index, " is out of range, there are ", size_);
    for (const char c : std::string_view(images_.bytes).substr(index * pixels, pixels)) *inputs++ = value_of[static_cast<uint8_t>(c)];
    *labels++ = byte_at(labels_.bytes, index);
  }
}

std::vector<int64_t> ImageClassification::label_histogram() const {
  std::vector<int64_t> counts(options_.class_names.size());
  for (size_t i = 0; i < static_cast<size_t>(size_); ++i) ++counts[byte_at(labels_.bytes, i)];
  return counts;
}

DataDescription mnist_description() {
  DataDescription d{.summary = "MNIST: 60,000 training and 10,000 test images of handwritten digits, 28 x 28 grey (LeCun and Cortes)",
                    .layout = "mnist/{train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte, each raw or .gz",
                    .origin = "the MNIST set is needed (four idx files in one folder, http://yann.lecun.com/exdb/mnist or a mirror)"};
  for (const auto& [name, checksum] : {std::pair("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
                                       std::pair("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
                                       std::pair("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
                                       std::pair("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c")})
    d.files.push_back({.name = name, .url = cat("https://ossci-datasets.s3.amazonaws.com/mnist/", name), .hash = "md5", .checksum = checksum});
  return d;
}

DataDescription fashion_mnist_description() {
  return {.summary = "Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28 x 28 grey (Xiao et al. 2017)",
          .layout = "{train,t10k}-images-idx3-ubyte and -labels-idx1-ubyte in one folder, each raw or .gz",
          .origin =
              "the Fashion-MNIST set is needed (four idx files in one folder; the Debian package dataset-fashion-mnist puts them in "
              "/usr/share/datasets/fashion-mnist)"};
}

}  // namespace sinkgrad
