// The format is described in numpy/lib/format.py: magic, version, length of the header, the header as a Python dictionary, the elements.
#include "core/npy.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/file.h"
#include "core/names.h"

namespace sinkgrad {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "\x93NUMPY";

/// Reads the header's dictionary: {'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }
class Header {
 public:
  Header(std::string_view text, const std::string& name) : rest_(text), name_(name) {
    expect('{');
    while (!take('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr")
        descr_ = string();
      else if (key == "fortran_order")
        fortran_ = boolean();
      else if (key == "shape")
        shape_ = tuple();
      else
        fail("has the unknown key '" + key + "'");
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (!rest_.empty()) fail("goes on after its dictionary");
    if (!descr_ || !fortran_ || !shape_) fail("needs the keys descr, fortran_order and shape");
  }
  const std::string& descr() const { return *descr_; }
  bool fortran() const { return *fortran_; }
  const Shape& shape() const { return *shape_; }
  [[noreturn]] void fail(const std::string& what) const { throw InputError(cat(name_, ": the header of a .npy file ", printable(what))); }

 private:
  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\n"), rest_.size())); }
  bool take(char c) {
    skip_space();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!take(c)) fail(cat("requires '", c, "' before \"", rest_.substr(0, 20), "\""));
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  std::string string() {
    const char quote = take('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const size_t end = rest_.find(quote);
    if (end == std::string_view::npos) fail("has a string without an end, or an array of records, which is not supported");
    const std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return text;
  }
  bool boolean() {
    if (take_word("True")) return true;
    if (!take_word("False")) fail("requires True or False for fortran_order");
    return false;
  }
  Shape tuple() {
    Shape shape;
    int64_t count = 1;
    expect('(');
    while (!take(')')) {
      skip_space();
      int64_t d = -1;
      const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), d);
      if (error != std::errc() || d < 0) fail("requires non-negative integers as shape");
      rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
      if (shape.rank() == Shape::kMaxRank) fail("has more than six dimensions");
      if (__builtin_mul_overflow(count, std::max<int64_t>(d, 1), &count) || count > int64_t{1} << 40) fail("asks for too many elements");
      shape.push_back(d);
      if (!take(',')) {
        expect(')');
        break;
      }
    }
    return shape;
  }

  std::string_view rest_;
  const std::string& name_;
  std::optional<std::string> descr_;
  std::optional<bool> fortran_;
  std::optional<Shape> shape_;
};

template <class T>
double element(const char* at, bool swap) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, at, sizeof(T));
  if (swap) std::reverse(bytes, bytes + sizeof(T));
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return static_cast<double>(value);
}

double half(const char* at, bool swap) {
  const auto bits = static_cast<uint32_t>(element<uint16_t>(at, swap));
  const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
  const double size =
      exponent == 31 ? (fraction ? std::nan("") : HUGE_VAL) : std::ldexp(exponent ? 1024 + fraction : fraction, std::max(exponent, 1) - 25);
  return bits >> 15 ? -size : size;
}

using Reader = double (*)(const char*, bool);

/// How an element is read; null for what has no meaning as a number.
Reader reader(std::string_view kind) {
  static constexpr std::pair<std::string_view, Reader> kReaders[] = {
      {"b1", element<uint8_t>}, {"i1", element<int8_t>},   {"i2", element<int16_t>},  {"i4", element<int32_t>},  {"i8", element<int64_t>},
      {"u1", element<uint8_t>}, {"u2", element<uint16_t>}, {"u4", element<uint32_t>}, {"u8", element<uint64_t>}, {"f2", half},
      {"f4", element<float>},   {"f8", element<double>}};
  for (const auto& [name, read] : kReaders)
    if (name == kind) return read;
  return nullptr;
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// What a local header and an entry of the directory of a zip archive have in common.
std::string zip_fields(const std::string& name, const std::string& content) {
  std::string bytes;
  append<uint16_t>(bytes, 20);    // version 2.0
  append<uint16_t>(bytes, 0);     // flags
  append<uint16_t>(bytes, 0);     // stored
  append<uint16_t>(bytes, 0);     // 00:00
  append<uint16_t>(bytes, 0x21);  // 1980-01-01
  append<uint32_t>(bytes, static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size())));
  append<uint32_t>(bytes, static_cast<uint32_t>(content.size()));
  append<uint32_t>(bytes, static_cast<uint32_t>(content.size()));
  append<uint16_t>(bytes, static_cast<uint16_t>(name.size()));
  append<uint16_t>(bytes, 0);  // no extra field
  return bytes;
}

}  // namespace

Tensor parse_npy(std::string_view bytes, const std::string& name) {
  const auto number = [&](size_t at, size_t width) {
    size_t value = 0;
    for (size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
    return value;
  };
  require<InputError>(bytes.starts_with(kMagic) && bytes.size() >= 12, name, ": a .npy file must begin with \\x93NUMPY, a version and a header");
  const size_t width = bytes[6] == 1 ? 2 : 4, start = 8 + width, length = number(8, width);
  require<InputError>(bytes[6] >= 1 && bytes[6] <= 3, name, ": .npy versions 1 to 3 are supported, got ", int{bytes[6]});
  require<InputError>(length <= bytes.size() - start, name, ": the header of ", length, " bytes exceeds the file of ", bytes.size());
  const Header header(bytes.substr(start, length), name);
  const std::string& descr = header.descr();
  const Reader read = descr.size() >= 2 ? reader(std::string_view(descr).substr(1)) : nullptr;
  if (!read || !std::strchr("<>|=", descr[0])) header.fail("must name a type of numbers such as '<f8', got '" + descr + "'");
  const size_t size = static_cast<size_t>(descr.back() - '0');
  const std::string_view data = bytes.substr(start + length);
  require<InputError>(static_cast<size_t>(header.shape().count()) == data.size() / size && data.size() % size == 0, name, ": shape ", header.shape(),
                      " of ", descr, " requires ", static_cast<size_t>(header.shape().count()) * size, " bytes, got ", data.size());
  Tensor array(header.shape(), DType::f64);
  const Shape& shape = header.shape();
  for (int64_t k = 0; k < shape.count(); ++k) {
    int64_t at = k;
    if (header.fortran()) {  // the first index runs fastest
      int64_t rest = k, stride = shape.count();
      at = 0;
      for (int d = shape.rank(); d-- > 0;) {
        stride /= shape[d];
        at += rest % shape[d] * stride;
        rest /= shape[d];
      }
    }
    array.span<double>()[static_cast<size_t>(k)] = read(data.data() + static_cast<size_t>(at) * size, descr[0] == '>');
  }
  return array;
}

std::string npy_bytes(const Tensor& array) {
  const char* descr = array.dtype() == DType::f32 ? "<f4" : array.dtype() == DType::f64 ? "<f8" : array.dtype() == DType::i32 ? "<i4" : "<i8";
  std::string shape;
  for (int i = 0; i < array.shape().rank(); ++i) shape += cat(array.shape()[i], i == 0 || i + 1 < array.shape().rank() ? "," : "");
  std::string header = cat("{'descr': '", descr, "', 'fortran_order': False, 'shape': (", shape, "), }");
  header.append(63 - (10 + header.size()) % 64, ' ');  // elements begin at a multiple of 64
  header += '\n';
  std::string bytes(kMagic);
  bytes += std::string("\x01\x00", 2);
  append(bytes, static_cast<uint16_t>(header.size()));
  return bytes.append(header).append(static_cast<const char*>(array.view().data), array.view().bytes());
}

void write_npz(const std::filesystem::path& path, std::span<const std::pair<std::string, Tensor>> arrays) {
  AtomicFile file(path);
  std::string directory;
  for (const auto& [array_name, array] : arrays) {
    const std::string name = array_name + ".npy", content = npy_bytes(array), fields = zip_fields(name, content);
    const uint64_t offset = file.written();
    require(offset + content.size() + directory.size() + 1024 <= UINT32_MAX, path.string(), ": an .npz file must not exceed 4 GiB");
    file.write("PK\x03\x04" + fields + name);
    file.write(content);
    directory += std::string("PK\x01\x02\x14\x00", 6) + fields;
    directory.append(10, '\0');  // no comment, first disk, no attributes
    append(directory, static_cast<uint32_t>(offset));
    directory += name;
  }
  const auto start = static_cast<uint32_t>(file.written());
  std::string end("PK\x05\x06\x00\x00\x00\x00", 8);
  append(end, static_cast<uint16_t>(arrays.size()));
  append(end, static_cast<uint16_t>(arrays.size()));
  append(end, static_cast<uint32_t>(directory.size()));
  append(end, start);
  append<uint16_t>(end, 0);
  file.write(directory + end);
  file.commit();
}

}  // namespace sinkgrad
