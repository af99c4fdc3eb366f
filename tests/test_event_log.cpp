// TensorBoard's event files, to the byte.
#include <catch2/catch.hpp>
#include <filesystem>

#include "core/check.h"
#include "core/file.h"
#include "temporary_folder.h"
#include "tools/ui/metrics.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 3) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

const std::string kVersion = from_hex("0f 00 00 00 00 00 00 00 6d 53 2b 09 1a 0d 62 72 61 69 6e 2e 45 76 65 6e 74 3a 32 fc 98 51 29");
const std::string kLoss =
    from_hex("1a 00 00 00 00 00 00 00 12 9b d8 2d 09 00 00 00 00 00 00 f0 3f 10 01 2a 0d 0a 0b 0a 04 6c 6f 73 73 15 00 00 00 3f 27 f9 5d b1");

std::vector<fs::path> event_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// The messages of a file whose sums are right.
std::vector<std::string> messages(const std::string& bytes) {
  auto number = [&](size_t at, int size) {
    uint64_t x = 0;
    for (int i = 0; i < size; ++i) x |= uint64_t{static_cast<unsigned char>(bytes.at(at + i))} << (8 * i);
    return x;
  };
  std::vector<std::string> found;
  for (size_t at = 0; at < bytes.size();) {
    const size_t length = number(at, 8);
    REQUIRE(number(at + 8, 4) == masked_crc32c(bytes.substr(at, 8)));
    found.push_back(bytes.substr(at + 12, length));
    REQUIRE(number(at + 12 + length, 4) == masked_crc32c(found.back()));
    at += 16 + length;
  }
  return found;
}

}  // namespace

TEST_CASE("CRC-32C is masked as TensorBoard does") {
  CHECK(masked_crc32c("123456789") == 0xc78ab0e5);
  CHECK(masked_crc32c("") == 0xa282ead8);
}

TEST_CASE("fault 95: records equal the reference ones to the byte") {
  const TemporaryFolder folder;
  EventLog log(folder.path, 0, 0);
  CHECK_THAT(log.path().filename().string(), Catch::StartsWith("events.out.tfevents.0."));
  log.write(1, 1, {{"loss", 0.5}});
  CHECK(read_file(log.path(), 1 << 20) == kVersion + kLoss);
  CHECK_THROWS_AS(EventLog(folder.path / "absent", 0, 0), IoError);
}

TEST_CASE("fault 95: a resumed run opens a new event file, behind a torn one, and takes back what came after its update") {
  const TemporaryFolder folder;
  const fs::path metrics = folder.path / "metrics.jsonl";
  {
    MetricsWriter writer = MetricsWriter::create(metrics, nlohmann::json::object());
    writer.write({.time = 5, .step = 3, .split = "train", .values = {{"loss", 0.25}, {"acc", 1}}});
  }
  const std::vector<fs::path> first = event_files(folder.path);
  REQUIRE(first.size() == 1);
  const std::vector<std::string> one = messages(read_file(first[0], 1 << 20));
  REQUIRE(one.size() == 2);
  CHECK_THAT(one[1], Contains("loss/train") && Contains("acc/train"));
  fs::resize_file(first[0], fs::file_size(first[0]) - 3);
  MetricsWriter writer = MetricsWriter::resume(metrics, 2);
  writer.write({.time = 6, .step = 3, .split = "test", .values = {{"loss", 0.5}}});
  CHECK(read_file(first[0], 1 << 20).size() == fs::file_size(first[0]));
  std::vector<fs::path> files = event_files(folder.path);
  REQUIRE(files.size() == 2);
  const fs::path second = files[0] == first[0] ? files[1] : files[0];
  const std::vector<std::string> two = messages(read_file(second, 1 << 20));
  REQUIRE(two.size() == 3);
  CHECK(two[1].ends_with(std::string("\x10\x03\x3a\x02\x08\x01", 6)));  // step 3, session_log START
  CHECK_THAT(two[2], Contains("loss/test"));
}
