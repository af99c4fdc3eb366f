// The format is described in numpy/lib/format.py: magic, version, length of the header, the header as a Python dictionary, the elements.
#include "core/npy.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <functional>
#include <optional>

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
T element(const char* at, bool swap) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, at, sizeof(T));
  if (swap) std::reverse(bytes, bytes + sizeof(T));
  return std::bit_cast<T>(bytes);
}

float half(const char* at, bool swap) {
  const auto bits = static_cast<uint32_t>(element<uint16_t>(at, swap));
  const uint32_t sign = bits >> 15 << 31, exponent = bits >> 10 & 31, fraction = bits & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);
  if (exponent == 0) return (sign ? -0x1p-24f : 0x1p-24f) * static_cast<float>(fraction);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

int64_t unsigned_long(const char* at, bool swap) {
  const auto value = element<uint64_t>(at, swap);
  require<InputError>(value <= INT64_MAX, "an unsigned integer of 64 bits must be below 2^63, got ", value);
  return static_cast<int64_t>(value);
}

/// Fills an array from elements at data + offset(k) size.
using Fill = void (*)(const char* data, const std::function<size_t(int64_t)>& offset, size_t size, bool swap, Tensor& to);

template <class To, auto read>
void fill(const char* data, const std::function<size_t(int64_t)>& offset, size_t size, bool swap, Tensor& to) {
  const std::span<To> elements = to.span<To>();
  for (size_t k = 0; k < elements.size(); ++k) elements[k] = static_cast<To>(read(data + offset(static_cast<int64_t>(k)) * size, swap));
}

/// How a type of elements is read.
struct Format {
  std::string_view kind;
  DType dtype;
  Fill read;
};
constexpr Format kFormats[] = {{"b1", DType::i32, fill<int32_t, element<uint8_t>>},  {"i1", DType::i32, fill<int32_t, element<int8_t>>},
                               {"i2", DType::i32, fill<int32_t, element<int16_t>>},  {"i4", DType::i32, fill<int32_t, element<int32_t>>},
                               {"i8", DType::i64, fill<int64_t, element<int64_t>>},  {"u1", DType::i32, fill<int32_t, element<uint8_t>>},
                               {"u2", DType::i32, fill<int32_t, element<uint16_t>>}, {"u4", DType::i64, fill<int64_t, element<uint32_t>>},
                               {"u8", DType::i64, fill<int64_t, unsigned_long>},     {"f2", DType::f32, fill<float, half>},
                               {"f4", DType::f32, fill<float, element<float>>},      {"f8", DType::f64, fill<double, element<double>>}};

/// Null for what has no meaning as a number.
const Format* format_of(std::string_view kind) {
  const auto found = std::find_if(std::begin(kFormats), std::end(kFormats), [&](const Format& f) { return f.kind == kind; });
  return found == std::end(kFormats) ? nullptr : found;
}

/// Where element k of a row-major array lies when the first index runs fastest.
size_t fortran_offset(const Shape& shape, int64_t k) {
  int64_t rest = k, stride = shape.count(), at = 0;
  for (int d = shape.rank(); d-- > 0;) {
    stride /= shape[d];
    at += rest % shape[d] * stride;
    rest /= shape[d];
  }
  return static_cast<size_t>(at);
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
  const Format* format = descr.size() >= 2 ? format_of(std::string_view(descr).substr(1)) : nullptr;
  if (!format || !std::strchr("<>|=", descr[0])) header.fail("must name a type of numbers such as '<f8', got '" + descr + "'");
  const auto size = static_cast<size_t>(descr.back() - '0');
  const std::string_view data = bytes.substr(start + length);
  const Shape& shape = header.shape();
  require<InputError>(static_cast<size_t>(shape.count()) == data.size() / size && data.size() % size == 0, name, ": shape ", shape, " of ", descr,
                      " requires ", static_cast<size_t>(shape.count()) * size, " bytes, got ", data.size());
  Tensor array(shape, format->dtype);
  const auto offset = [&](int64_t k) { return header.fortran() ? fortran_offset(shape, k) : static_cast<size_t>(k); };
  try {
    format->read(data.data(), offset, size, descr[0] == '>', array);
  } catch (const InputError& error) {
    throw InputError(cat(name, ": ", error.what()));
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
  bytes += static_cast<char>(header.size() & 255);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes.append(header).append(static_cast<const char*>(array.view().data), array.view().bytes());
}

}  // namespace sinkgrad
