// CRC-32C, the few protobuf fields that events need, and their framing.
#include "tools/ui/event_log.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <system_error>

#include "core/check.h"

namespace sinkgrad {
namespace {

constexpr std::array<uint32_t, 256> kCrcTable = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = (table[i] >> 1) ^ (table[i] & 1 ? 0x82F63B78u : 0);
  }
  return table;
}();

std::string little_endian(uint64_t x, int bytes) {
  std::string s;
  for (int i = 0; i < bytes; ++i) s += static_cast<char>(x >> (8 * i));
  return s;
}

// Protobuf fields: the key is 8 number + wire type.
std::string varint(uint64_t x) {
  std::string s;
  for (; x >= 128; x >>= 7) s += static_cast<char>(x | 128);
  return s + static_cast<char>(x);
}
std::string key(int field, int type) { return varint(static_cast<uint64_t>(8 * field + type)); }
std::string integer(int field, int64_t x) { return key(field, 0) + varint(static_cast<uint64_t>(x)); }
std::string real64(int field, double x) { return key(field, 1) + little_endian(std::bit_cast<uint64_t>(x), 8); }
std::string real32(int field, float x) { return key(field, 5) + little_endian(std::bit_cast<uint32_t>(x), 4); }
std::string bytes(int field, std::string_view x) { return key(field, 2) + varint(x.size()) + std::string(x); }

/// Event{1: wall_time, 2: step, ...}; zeros are left out.
std::string event(double time, int64_t step) { return (time != 0 ? real64(1, time) : "") + (step ? integer(2, step) : ""); }

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 255];
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

EventLog::EventLog(const std::filesystem::path& folder, int64_t first_step, double time) {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || !host[0]) host = {"localhost"};
  for (int n = 0; !file_; ++n) {
    path_ = folder / cat("events.out.tfevents.", static_cast<int64_t>(time), '.', host.data(), '.', ::getpid(), '.', n);
    file_.reset(std::fopen(path_.c_str(), "wbxe"));
    require<IoError>(file_ || errno == EEXIST, path_.string(), ": opening for writing failed: ", std::generic_category().message(errno));
  }
  append(event(time, 0) + bytes(3, "brain.Event:2"));                             // file_version
  if (first_step > 0) append(event(time, first_step) + bytes(7, integer(1, 1)));  // session_log: SessionLog{status: START}
}

void EventLog::write(double time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  std::string summary;
  for (const auto& [name, value] : scalars) summary += bytes(1, bytes(1, name) + real32(2, static_cast<float>(value)));  // Value{tag, simple_value}
  append(event(time, step) + bytes(5, summary));
}

void EventLog::append(std::string_view message) {
  const std::string length = little_endian(message.size(), 8);
  const std::string record = length + little_endian(masked_crc32c(length), 4) + std::string(message) + little_endian(masked_crc32c(message), 4);
  const bool written = std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size() && std::fflush(file_.get()) == 0;
  require<IoError>(written, path_.string(), ": writing failed: ", std::generic_category().message(errno));
}

}  // namespace sinkgrad
