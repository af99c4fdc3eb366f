// The header is parsed as a whole and checked as a whole before any tensor is made: a refused file leaves nothing behind.
#include "core/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <vector>

#include "core/file.h"

namespace sinkgrad {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and are copied as they are");

using nlohmann::json;

constexpr const char* kMetadata = "__metadata__";

/// A name from a file in one printable line: quoted, escaped and cut.
std::string quoted(const std::string& name) {
  constexpr size_t kLongest = 80;
  return json(name.substr(0, kLongest)).dump(-1, ' ', true, json::error_handler_t::replace) + (name.size() > kLongest ? "..." : "");
}

float from_half(uint16_t h) {
  const uint32_t sign = uint32_t{h} >> 15 << 31, exponent = h >> 10 & 31, fraction = h & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13);
  if (exponent == 0) return (sign ? -0x1p-24f : 0x1p-24f) * static_cast<float>(fraction);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

float from_bfloat(uint16_t h) { return std::bit_cast<float>(uint32_t{h} << 16); }

template <class To, class From, class Convert>
void convert_elements(const char* from, Tensor& to, Convert convert) {
  for (To& value : to.span<To>()) {
    From element;
    std::memcpy(&element, from, sizeof element);
    from += sizeof element;
    value = convert(element);
  }
}

void copy_elements(const char* from, Tensor& to) {
  if (to.count() > 0) std::memcpy(to.view().data, from, to.view().bytes());
}
void from_bytes(const char* from, Tensor& to) {
  convert_elements<int32_t, uint8_t>(from, to, [](uint8_t x) { return int32_t{x}; });
}

/// How a dtype of the format is read.
struct Format {
  const char* name;
  uint64_t bytes;
  DType dtype;
  void (*read)(const char*, Tensor&);
};
constexpr std::array kFormats = {
    Format{"F32", 4, DType::f32, copy_elements},
    Format{"F64", 8, DType::f64, copy_elements},
    Format{"I32", 4, DType::i32, copy_elements},
    Format{"I64", 8, DType::i64, copy_elements},
    Format{"F16", 2, DType::f32, [](const char* from, Tensor& to) { convert_elements<float, uint16_t>(from, to, from_half); }},
    Format{"BF16", 2, DType::f32, [](const char* from, Tensor& to) { convert_elements<float, uint16_t>(from, to, from_bfloat); }},
    Format{"U8", 1, DType::i32, from_bytes},
    Format{"BOOL", 1, DType::i32, from_bytes},
};
/// Those that are written: as memory has them.
const char* format_name(DType dtype) {
  return std::find_if(kFormats.begin(), kFormats.end(), [&](const Format& f) { return f.dtype == dtype; })->name;
}

struct Entry {
  std::string name;
  const Format* format;
  Shape shape;
  uint64_t begin, end;
};

/// Parses JSON, refusing repeated keys and nesting deeper than the format has.
json parse_header(std::string_view text, const std::string& path) {
  std::vector<std::set<std::string>> keys;  // of the open objects
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) require<InputError>(depth <= 2, path, ": the header is nested too deeply");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      require<InputError>(keys.back().insert(key).second, path, ": the key ", quoted(key), " occurs twice in the header");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& e) {
    throw InputError(cat(path, ": the header is not valid JSON at byte ", 7 + e.byte));
  } catch (const json::out_of_range&) {
    throw InputError(cat(path, ": the header holds a number out of range"));
  }
}

Entry parse_entry(const std::string& name, const json& value, const std::string& path) {
  const std::string at = path + ": tensor " + quoted(name);
  const auto is_unsigned = [](const json& x) { return x.is_number_unsigned(); };
  require<InputError>(value.is_object() && value.size() == 3 && value.contains("dtype") && value.contains("shape") && value.contains("data_offsets"),
                      at, " must have exactly dtype, shape and data_offsets");
  const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
  require<InputError>(dtype.is_string(), at, ": dtype must be a string");
  require<InputError>(shape.is_array() && std::all_of(shape.begin(), shape.end(), is_unsigned), at, ": shape must be a list of unsigned integers");
  require<InputError>(offsets.is_array() && offsets.size() == 2 && std::all_of(offsets.begin(), offsets.end(), is_unsigned), at,
                      ": data_offsets must be two unsigned integers");

  const auto& dtype_name = dtype.get_ref<const std::string&>();
  const auto format = std::find_if(kFormats.begin(), kFormats.end(), [&](const Format& f) { return dtype_name == f.name; });
  require<InputError>(format != kFormats.end(), at, " has dtype ", quoted(dtype_name), "; F32, F64, I32, I64, F16, BF16, U8 and BOOL can be read");
  require<InputError>(shape.size() <= Shape::kMaxRank, at, " has ", shape.size(), " dimensions; at most ", Shape::kMaxRank, " are supported");

  Entry entry{name, &*format, Shape{}, offsets[0].get<uint64_t>(), offsets[1].get<uint64_t>()};
  // The product without zeros must fit too: strides of an empty tensor are computed from it.
  uint64_t limit = INT64_MAX / format->bytes;
  for (const json& dimension : shape) {
    const auto d = dimension.get<uint64_t>();
    require<InputError>(d <= limit, at, " has a shape whose size overflows 64 bits");
    limit /= std::max<uint64_t>(d, 1);
    entry.shape.push_back(static_cast<int64_t>(d));
  }
  const uint64_t bytes = static_cast<uint64_t>(entry.shape.count()) * format->bytes;
  require<InputError>(entry.begin <= entry.end && entry.end <= INT64_MAX && entry.end - entry.begin == bytes, at, " of dtype ", dtype_name,
                      " and shape ", entry.shape, " needs ", bytes, " bytes, its data_offsets are [", entry.begin, ",", entry.end, "]");
  return entry;
}

}  // namespace

SafetensorsFile parse_safetensors(std::string_view bytes, const std::string& path, uint64_t header_limit) {
  require<InputError>(bytes.size() >= 8, path, ": file has ", bytes.size(), " bytes, a safetensors file begins with 8 bytes of header length");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  require<InputError>(header_bytes <= header_limit, path, ": is no safetensors file: a header has at most ", header_limit,
                      " bytes, the first 8 bytes say ", header_bytes);
  require<InputError>(header_bytes <= bytes.size() - 8, path, ": file has ", bytes.size(), " bytes, the header alone ends at ", 8 + header_bytes);
  const std::string_view text = bytes.substr(8, header_bytes), data = bytes.substr(8 + header_bytes);
  require<InputError>(text.starts_with('{') && text[text.find_last_not_of(' ')] == '}', path,
                      ": the header must be a JSON object from byte 8, padded with spaces only");

  SafetensorsFile file;
  std::vector<Entry> entries;
  const json header = parse_header(text, path);
  for (const auto& [name, value] : header.items()) {
    if (name != kMetadata) {
      entries.push_back(parse_entry(name, value, path));
      continue;
    }
    require<InputError>(value.is_object(), path, ": __metadata__ must be an object of strings");
    for (const auto& [key, text_value] : value.items()) {
      require<InputError>(text_value.is_string(), path, ": __metadata__ ", quoted(key), " must be a string");
      file.metadata[key] = text_value.get<std::string>();
    }
  }

  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  uint64_t end = 0;
  for (const Entry& e : entries) {
    require<InputError>(e.begin == end, path, ": tensor ", quoted(e.name), " begins at offset ", e.begin, ", must begin at ", end,
                        e.begin < end ? " (tensors overlap)" : " (bytes that belong to no tensor)");
    end = e.end;
  }
  require<InputError>(end == data.size(), path, ": file has ", bytes.size(), " bytes, header says ", 8 + header_bytes + end);

  for (const Entry& e : entries) {
    Tensor tensor(e.shape, e.format->dtype);
    e.format->read(data.data() + e.begin, tensor);
    file.tensors.emplace(e.name, std::move(tensor));
  }
  return file;
}

SafetensorsFile read_safetensors(const std::filesystem::path& path, uint64_t header_limit) {
  return parse_safetensors(read_file(path, UINT64_MAX), path.string(), header_limit);
}

void write_safetensors(const std::filesystem::path& path, std::span<const NamedView> tensors, const std::map<std::string, std::string>& metadata,
                       uint64_t header_limit) {
  std::vector<const NamedView*> order;
  for (const NamedView& t : tensors) order.push_back(&t);
  // 8-byte types first: every tensor is aligned to its element.
  std::sort(order.begin(), order.end(), [](const NamedView* a, const NamedView* b) {
    const size_t bytes_a = size_of(a->view.dtype), bytes_b = size_of(b->view.dtype);
    return bytes_a != bytes_b ? bytes_a > bytes_b : a->name < b->name;
  });

  std::string header = "{";
  try {
    if (!metadata.empty()) header += cat(json(kMetadata), ':', json(metadata));
    uint64_t end = 0;
    std::set<std::string_view> names{kMetadata};
    for (const NamedView* t : order) {
      require<InputError>(names.insert(t->name).second, path.string(), ": the tensor name ", quoted(t->name), " is repeated or reserved");
      json shape = json::array();
      for (int i = 0; i < t->view.shape.rank(); ++i) shape.push_back(t->view.shape[i]);
      const uint64_t begin = end;
      end += t->view.bytes();
      header += cat(header.size() > 1 ? "," : "", json(t->name), ":{\"dtype\":\"", format_name(t->view.dtype), "\",\"shape\":", shape,
                    ",\"data_offsets\":[", begin, ",", end, "]}");
    }
  } catch (const json::type_error&) {
    throw InputError(cat(path.string(), ": names and metadata must be UTF-8"));
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = header.size();
  require<InputError>(header_bytes <= header_limit, path.string(), ": a safetensors header has at most ", header_limit, " bytes, ", tensors.size(),
                      " tensors need ", header_bytes);

  AtomicFile file(path);
  file.write(&header_bytes, 8);
  file.write(header);
  for (const NamedView* t : order) file.write(t->view.data, t->view.bytes());
  file.commit();
}

}  // namespace sinkgrad
