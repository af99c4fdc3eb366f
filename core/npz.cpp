// A .npz file is a zip archive (APPNOTE.TXT of PKWARE) of .npy files. The directory at its end says what there is; the header before each
// member must agree. numpy.savez reserves room for 64-bit sizes in those headers, so sizes are taken from the directory alone.
#include <zlib.h>

#include <algorithm>
#include <set>
#include <vector>

#include "core/file.h"
#include "core/npy.h"

namespace sinkgrad {
namespace {

constexpr std::string_view kMember = "PK\x03\x04", kEntry = "PK\x01\x02", kExtension = ".npy";
constexpr std::string_view kEnd("PK\x05\x06\0\0\0\0", 8);  // one disk
constexpr size_t kMemberBytes = 30, kEntryBytes = 46, kEndBytes = 22;
enum Flag : uint16_t { kEncrypted = 1, kSizesFollow = 8, kUtf8 = 0x800 };
enum Method : uint16_t { kStored = 0, kDeflated = 8 };
constexpr uint32_t kIn64Bits = UINT32_MAX;
constexpr uint64_t kFreeBytes = uint64_t{256} << 20, kMostExpansion = 100;

uint32_t checksum(std::string_view bytes) { return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size())); }

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0; });
}

/// The name of an array in one printable piece.
std::string shown(std::string_view name) {
  std::string text(name.substr(0, 80));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c >= 0 && c < ' '; }, '?');
  return "'" + text + "'";
}

/// Names that would lie elsewhere when the archive is unpacked are refused, on reading and on writing.
void require_safe(std::string_view name, const std::string& path) {
  bool safe = !name.empty() && name.size() <= UINT16_MAX - kExtension.size() && name.find('\0') == name.npos && name.find('\\') == name.npos;
  for (std::string_view rest = name; safe;) {
    const size_t slash = rest.find('/');
    const std::string_view part = rest.substr(0, slash);
    safe = !part.empty() && part != "." && part != "..";
    if (slash == rest.npos) break;
    rest.remove_prefix(slash + 1);
  }
  require<InputError>(safe, path, ": names in a .npz file must be relative paths without '..', got ", shown(name));
}

/// Little-endian numbers, one after another; the caller has checked that they are there.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T next() {
    T value = 0;
    for (size_t i = sizeof(T); i-- > 0;) value = static_cast<T>(value << 8 | static_cast<unsigned char>(bytes_[i]));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }
  void skip(size_t bytes) { bytes_.remove_prefix(bytes); }

 private:
  std::string_view bytes_;
};

template <class T>
void append(std::string& bytes, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) bytes += static_cast<char>(value >> 8 * i);
}

/// What a header and an entry of the directory have in common.
struct Common {
  uint16_t flags, method;
  uint32_t checksum, packed, size;
  uint16_t name, extra;  // lengths

  static Common read(Fields& fields) {
    fields.skip(2);  // version that is needed
    Common c{};
    c.flags = fields.next<uint16_t>();
    c.method = fields.next<uint16_t>();
    fields.skip(4);  // time and date
    c.checksum = fields.next<uint32_t>();
    c.packed = fields.next<uint32_t>();
    c.size = fields.next<uint32_t>();
    c.name = fields.next<uint16_t>();
    c.extra = fields.next<uint16_t>();
    return c;
  }
  std::string bytes() const {
    std::string bytes;
    append<uint16_t>(bytes, 20);  // version 2.0
    append(bytes, flags);
    append(bytes, method);
    append<uint16_t>(bytes, 0);     // 00:00
    append<uint16_t>(bytes, 0x21);  // 1980-01-01
    append(bytes, checksum);
    append(bytes, packed);
    append(bytes, size);
    append(bytes, name);
    append(bytes, extra);
    return bytes;
  }
};

struct Member {
  std::string_view file_name, name;  // with and without .npy
  Common common;
  uint64_t begin, data, end;  // offsets of the header, of the content, and behind it
};

/// The next entry of the directory, which is taken from it.
Member take_entry(std::string_view& directory, const std::string& path) {
  require<InputError>(directory.size() >= kEntryBytes && directory.starts_with(kEntry), path, ": the directory of the .npz file is damaged");
  Fields fields(directory.substr(kEntry.size() + 2));  // after the version that made it
  Member m{.common = Common::read(fields)};
  const size_t comment = fields.next<uint16_t>();
  fields.skip(8);  // disk, attributes
  m.begin = fields.next<uint32_t>();
  const size_t bytes = kEntryBytes + m.common.name + m.common.extra + comment;
  require<InputError>(directory.size() >= bytes, path, ": the directory of the .npz file is damaged");
  m.file_name = directory.substr(kEntryBytes, m.common.name);
  directory.remove_prefix(bytes);

  require<InputError>(m.file_name.ends_with(kExtension), path, ": a .npz file must hold .npy files, got ", shown(m.file_name));
  m.name = m.file_name.substr(0, m.file_name.size() - kExtension.size());
  require_safe(m.name, path);
  const std::string at = path + ": " + shown(m.name);
  require<InputError>(is_ascii(m.name) || (m.common.flags & kUtf8), at, " must be marked as UTF-8");
  require<InputError>(!(m.common.flags & kEncrypted), at, " is encrypted, which is not supported");
  require<InputError>(m.common.method == kStored || m.common.method == kDeflated, at, " must be stored or deflated, got the method ",
                      m.common.method);
  require<InputError>(m.common.packed != kIn64Bits && m.common.size != kIn64Bits && m.begin != kIn64Bits, at,
                      " has sizes of 64 bits (zip64), which are not supported; an archive must not exceed 4 GiB");
  require<InputError>(m.common.method == kDeflated || m.common.packed == m.common.size, at, " is stored and must have one size, got ",
                      m.common.packed, " and ", m.common.size);
  return m;
}

/// Finds the content of a member; its header must say what the directory says.
void locate(Member& m, std::string_view bytes, uint64_t limit, const std::string& path) {
  const std::string at = path + ": " + shown(m.name);
  require<InputError>(m.begin + kMemberBytes <= limit && bytes.substr(m.begin).starts_with(kMember), at, " has no header at byte ", m.begin);
  Fields fields(bytes.substr(m.begin + kMember.size()));
  const Common own = Common::read(fields);
  m.data = m.begin + kMemberBytes + own.name + own.extra;
  m.end = m.data + m.common.packed;
  require<InputError>(m.end <= limit, at, " must end at byte ", limit, ", got ", m.end);
  const bool sizes_agree = (own.packed == m.common.packed && own.size == m.common.size) || (own.packed == kIn64Bits && own.size == kIn64Bits);
  require<InputError>(bytes.substr(m.begin + kMemberBytes, own.name) == m.file_name && own.flags == m.common.flags && own.method == m.common.method &&
                          ((own.flags & kSizesFollow) || (sizes_agree && own.checksum == m.common.checksum)),
                      at, ": the header at byte ", m.begin, " must agree with the directory");
}

/// The content of a deflated member, exactly `size` bytes.
std::string inflated(std::string_view packed, uint32_t size, const std::string& at) {
  std::string content(size, '\0');
  z_stream stream{};
  require<OutOfMemoryError>(inflateInit2(&stream, -MAX_WBITS) == Z_OK, at, ": decompressing needs more memory than there is");
  struct End {
    z_stream* stream;
    ~End() { inflateEnd(stream); }
  } end{&stream};
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(content.data());
  stream.avail_out = size;
  const bool complete = inflate(&stream, Z_FINISH) == Z_STREAM_END;
  require<InputError>(complete && stream.avail_in == 0 && stream.avail_out == 0, at, " must be deflated data of ", size, " bytes, it is damaged");
  return content;
}

}  // namespace

std::map<std::string, Tensor> parse_npz(std::string_view bytes, const std::string& path) {
  require<InputError>(bytes.size() >= kEndBytes && (bytes.starts_with(kMember) || bytes.starts_with(kEnd)), path,
                      ": is no .npz file: a zip archive begins with PK");
  const uint64_t end = bytes.size() - kEndBytes;
  require<InputError>(bytes.substr(end).starts_with(kEnd), path, ": the .npz file is truncated: it must end with its directory");
  Fields fields(bytes.substr(end + kEnd.size()));
  const size_t on_disk = fields.next<uint16_t>(), count = fields.next<uint16_t>();
  const uint64_t size = fields.next<uint32_t>(), start = fields.next<uint32_t>();
  const size_t comment = fields.next<uint16_t>();
  require<InputError>(count != UINT16_MAX && size != kIn64Bits && start != kIn64Bits, path,
                      ": is a zip64 archive, which is not supported; it must not exceed 4 GiB and 65534 arrays");
  require<InputError>(on_disk == count && start + size == end && comment == 0, path, ": the directory of the .npz file is damaged");

  std::vector<Member> members;
  std::set<std::string_view> names;
  uint64_t total = 0;
  for (std::string_view directory = bytes.substr(start, size); !directory.empty();) {
    Member& m = members.emplace_back(take_entry(directory, path));
    require<InputError>(names.insert(m.name).second, path, ": the name ", shown(m.name), " is repeated");
    locate(m, bytes, start, path);
    total += m.common.size;
  }
  require<InputError>(members.size() == count, path, ": the directory says ", count, " arrays, it holds ", members.size());
  require<InputError>(total <= std::max(kFreeBytes, kMostExpansion * bytes.size()), path, ": ", bytes.size(), " bytes must not unpack to more than ",
                      kMostExpansion, " times as many, got ", total);
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < members.size(); ++i)
    require<InputError>(members[i - 1].end <= members[i].begin, path, ": ", shown(members[i - 1].name), " and ", shown(members[i].name), " overlap");

  std::map<std::string, Tensor> arrays;
  for (const Member& m : members) {
    const std::string at = path + ": " + shown(m.name);
    const std::string_view packed = bytes.substr(m.data, m.common.packed);
    const std::string unpacked = m.common.method == kDeflated ? inflated(packed, m.common.size, at) : "";
    const std::string_view content = m.common.method == kDeflated ? std::string_view(unpacked) : packed;
    require<InputError>(checksum(content) == m.common.checksum, at, " is damaged: its checksum differs");
    arrays.emplace(m.name, parse_npy(content, at));
  }
  return arrays;
}

std::map<std::string, Tensor> read_npz(const std::filesystem::path& path) { return parse_npz(read_file(path, UINT64_MAX), path.string()); }

void write_npz(const std::filesystem::path& path, std::span<const std::pair<std::string, Tensor>> arrays) {
  require<InputError>(arrays.size() < UINT16_MAX, path.string(), ": a .npz file must not hold more than 65534 arrays, got ", arrays.size());
  AtomicFile file(path);
  std::string directory;
  std::set<std::string_view> names;
  for (const auto& [array_name, array] : arrays) {
    require_safe(array_name, path.string());
    require<InputError>(names.insert(array_name).second, path.string(), ": the name ", shown(array_name), " is repeated");
    const std::string name = array_name + ".npy", content = npy_bytes(array);
    const uint64_t offset = file.written();
    require<InputError>(offset + content.size() + directory.size() + name.size() * 2 + 1024 <= UINT32_MAX, path.string(),
                        ": a .npz file must not exceed 4 GiB");
    const auto size = static_cast<uint32_t>(content.size());
    const Common common{is_ascii(name) ? uint16_t{0} : static_cast<uint16_t>(kUtf8), kStored, checksum(content), size, size, static_cast<uint16_t>(name.size()), 0};
    file.write(cat(kMember, common.bytes(), name));
    file.write(content);
    directory += cat(kEntry, std::string_view("\x14\0", 2), common.bytes());
    directory.append(10, '\0');  // no comment, first disk, no attributes
    append(directory, static_cast<uint32_t>(offset));
    directory += name;
  }
  const auto start = static_cast<uint32_t>(file.written()), count = static_cast<uint32_t>(arrays.size());
  std::string end(kEnd);
  append(end, static_cast<uint16_t>(count));
  append(end, static_cast<uint16_t>(count));
  append(end, static_cast<uint32_t>(directory.size()));
  append(end, start);
  append<uint16_t>(end, 0);
  file.write(directory + end);
  file.commit();
}

}  // namespace sinkgrad
