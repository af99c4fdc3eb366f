// NumPy's archives of arrays. What is read can be written and read again. Each input is fed twice: as it is, and with the checksums that its stored
// members should have, because mutations never hit those.
#include <zlib.h>

#include "core/file.h"
#include "core/npy.h"
#include "fuzz/fuzz.h"
#include "temporary_folder.h"

namespace sinkgrad::fuzz {
namespace {

constexpr std::string_view kEntry = "PK\x01\x02", kMember = "PK\x03\x04";
constexpr size_t kEntryBytes = 46, kMemberBytes = 30;

uint32_t number(std::string_view bytes, size_t at, size_t size) {
  uint32_t value = 0;
  for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

void put(std::string& bytes, size_t at, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(value >> 8 * i);
}

uint32_t checksum(std::string_view bytes) { return static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size())); }

/// Sets the checksum of each member, in the directory and in its header, to that of its packed bytes.
std::string with_checksums(std::string bytes) {
  for (size_t entry = 0; (entry = bytes.find(kEntry, entry)) != bytes.npos && entry + kEntryBytes <= bytes.size(); ++entry) {
    const size_t member = number(bytes, entry + 42, 4), packed = number(bytes, entry + 20, 4);
    if (member + kMemberBytes > bytes.size() || bytes.compare(member, kMember.size(), kMember) != 0) continue;
    const size_t data = member + kMemberBytes + number(bytes, member + 26, 2) + number(bytes, member + 28, 2);
    if (data + packed > bytes.size()) continue;
    const uint32_t sum = checksum(std::string_view(bytes).substr(data, packed));
    put(bytes, entry + 16, sum);
    put(bytes, member + 14, sum);
  }
  return bytes;
}

std::string packed(std::string content) {
  std::string out(content.size() + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(content.data());
  stream.avail_in = static_cast<uInt>(content.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

/// An archive with one deflated member; write_npz stores.
std::string deflated(const std::string& name, const std::string& content) {
  const std::string data = packed(content);
  std::string common("\x14\0\0\0\x08\0\0\0\x21\0............", 22);  // version, flags, deflated, date; checksum and sizes follow
  put(common, 10, checksum(content));
  put(common, 14, static_cast<uint32_t>(data.size()));
  put(common, 18, static_cast<uint32_t>(content.size()));
  common += static_cast<char>(name.size()) + std::string(3, '\0');
  const std::string member = cat(kMember, common, name, data);
  const std::string directory = cat(kEntry, std::string_view("\x14\0", 2), common, std::string(14, '\0'), name);
  std::string end("PK\5\6\0\0\0\0\1\0\1\0............\0\0", 22);
  put(end, 12, static_cast<uint32_t>(directory.size()));
  put(end, 16, static_cast<uint32_t>(member.size()));
  end.replace(20, 2, 2, '\0');
  return cat(member, directory, end);
}

std::string stored(const std::vector<std::pair<std::string, Tensor>>& arrays) {
  static const TemporaryFolder folder;
  write_npz(folder / "stored.npz", arrays);
  return read_file(folder / "stored.npz", UINT64_MAX);
}

void parse(std::string_view input) {
  const std::map<std::string, Tensor> arrays = parse_npz(input, "input");
  const std::string again = stored({arrays.begin(), arrays.end()});
  const std::map<std::string, Tensor> same = parse_npz(again, "again");
  if (stored({same.begin(), same.end()}) != again) __builtin_trap();
}

}  // namespace

std::vector<std::string> seeds() {
  const Tensor wide = Tensor::of<double>({2, 3}, {1, 2, 3, 4, 5, 6}), whole = Tensor::of<int32_t>({4}, {1, 2, 3, 4});
  return {stored({}), stored({{"a", wide}}), stored({{"layer/weight", wide}, {"n\xc3\xa4me", whole}}), deflated("a.npy", npy_bytes(wide))};
}

void feed(std::string_view input) {
  try {
    parse(input);
  } catch (const InputError&) {
    parse(with_checksums(std::string(input)));
  }
}

}  // namespace sinkgrad::fuzz
