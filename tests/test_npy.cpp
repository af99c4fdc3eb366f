// NumPy's files: what NumPy writes is read, what is written is the format to the byte, and every malformed file is refused with a sentence.
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "core/file.h"
#include "core/npy.h"
#include "temporary_folder.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using namespace std::string_literals;

namespace {

/// A .npy file of version 1, its header padded as it comes.
std::string npy(const std::string& header, const std::string& data, char version = 1) {
  const std::string line = header + "\n";
  std::string bytes = "\x93NUMPY"s + version + '\0' + static_cast<char>(line.size() & 255) + static_cast<char>(line.size() >> 8);
  if (version > 1) bytes += "\0\0"s;
  return bytes + line + data;
}

std::string header(const std::string& descr, const std::string& shape, const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': (" + shape + "), }";
}

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

/// numpy.savez("s.npz", **{"a/b": array([[1, 2]], "<f4")}) and numpy.savez_compressed("c.npz", x=zeros(40, "<i8")), NumPy 2.4.
const std::string kStored = bytes_of(
    "504b03042d000000000000002100b14645eaffffffffffffffff07001400612f622e6e70790100100088000000000000008800000000000000934e554d5059010076007b27"
    "6465736372273a20273c6634272c2027666f727472616e5f6f72646572273a2046616c73652c20277368617065273a2028312c2032292c207d20202020202020202020202020"
    "2020202020202020202020202020202020202020202020202020202020202020202020202020202020202020200a0000803f00000040504b01022d032d0000000000000021"
    "00b14645ea8800000088000000070000000000000000000000800100000000612f622e6e7079504b0506000000000100010035000000c10000000000");
const std::string kDeflated = bytes_of(
    "504b03042d000000080000002100c15fdddcffffffffffffffff05001400782e6e707901001000c0010000000000004a000000000000009bec17ea1b10c9c850c650ad9e92"
    "5a9c5ca46ea5a06e9369a1aea3a09e965f54529498179f5f94920a12774bcc294e058a17672416a402f91a26063a9a3a0ab50ae4032e865140110000504b01022d032d0000"
    "00080000002100c15fdddc4a000000c0010000050000000000000000000000800100000000782e6e7079504b050600000000010001003300000081000000"
    "0000");

/// `bytes` with `what` at an offset, counted from the end when negative.
std::string patched(std::string bytes, int at, const std::string& what) {
  return bytes.replace(at < 0 ? bytes.size() - static_cast<size_t>(-at) : static_cast<size_t>(at), what.size(), what);
}

std::vector<double> values(const std::string& bytes) { return to_doubles(parse_npy(bytes, "a.npy").view()); }

}  // namespace

TEST_CASE("fault 84: all types of numbers, both byte orders and both memory orders are read") {
  CHECK(values(npy(header("|i1", "2,"), "\x7f\xff"s)) == std::vector<double>{127, -1});
  CHECK(values(npy(header("|u1", "2,"), "\x7f\xff"s)) == std::vector<double>{127, 255});
  CHECK(values(npy(header("|b1", "2,"), "\0\1"s)) == std::vector<double>{0, 1});
  CHECK(values(npy(header("<i2", "1,"), "\x01\xff"s)) == std::vector<double>{-255});
  CHECK(values(npy(header(">i2", "1,"), "\x01\xff"s)) == std::vector<double>{511});
  CHECK(values(npy(header("<u4", "1,"), "\xff\xff\xff\xff"s)) == std::vector<double>{4294967295.0});
  CHECK(values(npy(header(">i8", "1,"), "\0\0\0\0\0\0\1\0"s)) == std::vector<double>{256});
  CHECK(values(npy(header("<f4", "1,"), "\0\0\x80\x3f"s)) == std::vector<double>{1});
  CHECK(values(npy(header(">f8", "1,"), "\xc0\0\0\0\0\0\0\0"s)) == std::vector<double>{-2});
  // half precision: 1, -2, the least subnormal, the largest, infinity, NaN
  const auto halves = values(npy(header("<f2", "6,"), "\0\x3c\0\xc0\1\0\xff\x7b\0\x7c\1\x7e"s));
  CHECK(std::vector(halves.begin(), halves.begin() + 4) == std::vector<double>{1, -2, std::ldexp(1, -24), 65504});
  CHECK(std::isinf(halves[4]));
  CHECK(std::isnan(halves[5]));

  CHECK(values(npy(header("|u1", "2, 3"), "\1\2\3\4\5\6"s)) == std::vector<double>{1, 2, 3, 4, 5, 6});
  CHECK(values(npy(header("|u1", "2, 3", "True"), "\1\2\3\4\5\6"s)) == std::vector<double>{1, 3, 5, 2, 4, 6});
  CHECK(values(npy(header("|u1", "2, 1, 2", "True"), "\1\2\3\4"s)) == std::vector<double>{1, 3, 2, 4});
  CHECK(parse_npy(npy(header("<f8", ""), "\0\0\0\0\0\0\0\0"s), "a").shape() == Shape{});
  CHECK(parse_npy(npy(header("<f8", "0, 3"), ""), "a").shape() == Shape{0, 3});
  // Keys in any order, either quote, no comma at the end, version 2.
  CHECK(values(npy("{\"shape\":(1,),\"descr\":\"|u1\",\"fortran_order\":False}", "\7"s, 2)) == std::vector<double>{7});
  // A header of 70,000 bytes, whose length needs version 2.
  std::string longest = header("|u1", "1,");
  longest.resize(70'000, ' ');
  CHECK(values("\x93NUMPY\2\0\x70\x11\1\0"s + longest + "\7") == std::vector<double>{7});
}

TEST_CASE("fault 84: malformed .npy files are refused with the name and the reason") {
  const std::string good = npy(header("|u1", "2,"), "\1\2"s);
  for (const auto& [bytes, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "must begin with"},
           {"1 2 3 4 5 6 7 8", "must begin with"},
           {good.substr(0, 11), "must begin with"},
           {good.substr(0, 20), "exceeds the file"},
           {good.substr(0, good.size() - 1), "requires 2 bytes, got 1"},
           {good + "x", "requires 2 bytes, got 3"},
           {npy(header("|u1", "2,"), "\1\2"s, 4), "versions 1 to 3 are supported, got 4"},
           {npy(header("|O", "2,"), "\1\2"s), "type of numbers"},
           {npy(header("<c16", "1,"), std::string(16, '\0')), "type of numbers"},
           {npy(header("<U4", "1,"), std::string(16, '\0')), "type of numbers"},
           {npy(header("", "2,"), "\1\2"s), "type of numbers"},
           {npy(header("\x1b[2J\n", "2,"), "\1\2"s), "got '\\x1b[2J\\x0a'"},
           {npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2,)}", ""), "requires '''"},
           {npy("{'descr': '|u1', 'fortran_order': 0, 'shape': (2,)}", "\1\2"s), "True or False"},
           {npy("{'descr': '|u1', 'shape': (2,)}", "\1\2"s), "needs the keys"},
           {npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), 'x': 1}", "\1\2"s), "unknown key 'x'"},
           {npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,)} x", "\1\2"s), "goes on after"},
           {npy("{'descr': '|u1", ""), "without an end"},
           {npy(header("|u1", "-2,"), "\1\2"s), "non-negative integers"},
           {npy(header("|u1", "2.5,"), "\1\2"s), "before"},
           {npy(header("|u1", "1,1,1,1,1,1,2"), "\1\2"s), "six dimensions"},
           {npy(header("|u1", "4294967296, 4294967296"), "\1\2"s), "too many elements"},
           {npy(header("<f8", "1099511627776, 0, 9223372036854775807"), ""), "too many elements"},
           {npy(header("|u1", "99999999999999999999,"), "\1\2"s), "non-negative integers"},
       }) {
    CAPTURE(message);
    CHECK_THROWS_WITH(parse_npy(bytes, "a.npy"), Catch::StartsWith("a.npy: ") && Contains(message));
    CHECK_THROWS_AS(parse_npy(bytes, "a.npy"), InputError);
  }
  // No prefix and no changed byte of the header may do worse than an error.
  for (size_t i = 0; i < good.size(); ++i)
    for (int byte : {0, 39, 41, 44, 57, 123, 255}) {
      std::string changed = good;
      changed[i] = static_cast<char>(byte);
      try {
        parse_npy(changed, "a");
      } catch (const InputError&) {
      }
      CHECK_THROWS_AS(parse_npy(good.substr(0, i), "a"), InputError);
    }
}

TEST_CASE("what is written is aligned and read back to the bit") {
  const Tensor t = Tensor::of<double>({2, 3}, {1, -0.0, 1e-310, std::numeric_limits<double>::infinity(), 0.1, 3});
  const std::string bytes = npy_bytes(t);
  CHECK_THAT(bytes, Contains("'shape': (2,3)"));
  CHECK((bytes.size() - t.view().bytes()) % 64 == 0);
  CHECK(parse_npy(bytes, "a").shape() == t.shape());
  CHECK(npy_bytes(parse_npy(bytes, "a")) == bytes);
  CHECK_THAT(npy_bytes(Tensor({4}, DType::i32)), Contains("'<i4'") && Contains("(4,)"));
  CHECK_THAT(npy_bytes(Tensor(Shape{}, DType::f32)), Contains("'<f4'") && Contains("'shape': ()"));

  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, Tensor>> arrays = {{"a", t}, {"b", Tensor({0, 2}, DType::f64)}};
  write_npz(folder / "x.npz", arrays);
  write_npz(folder / "y.npz", arrays);
  const std::string archive = read_file(folder / "x.npz", 1 << 20);
  CHECK(archive == read_file(folder / "y.npz", 1 << 20));
  CHECK_THAT(archive, Catch::StartsWith("PK\x03\x04") && Contains("a.npy" + bytes) && Contains("b.npy"));
  CHECK_THROWS_AS(write_npz(folder / "no/x.npz", arrays), IoError);
}

TEST_CASE("elements keep their type and their bits") {
  const auto type = [](const char* descr, size_t bytes) { return parse_npy(npy(header(descr, "1,"), std::string(bytes, '\0')), "a").dtype(); };
  for (const char* descr : {"|b1", "|i1", "|u1", "<i2", "<u2", ">i4"}) CHECK(type(descr, static_cast<size_t>(descr[2] - '0')) == DType::i32);
  for (const char* descr : {"<u4", ">i8", "<u8"}) CHECK(type(descr, static_cast<size_t>(descr[2] - '0')) == DType::i64);
  CHECK(type("<f2", 2) == DType::f32);
  CHECK(type("<f4", 4) == DType::f32);
  CHECK(type(">f8", 8) == DType::f64);
  // 2^62 + 1 has no f64; a signalling NaN stays one.
  CHECK(parse_npy(npy(header("<i8", "1,"), "\1\0\0\0\0\0\0\x40"s), "a").span<int64_t>()[0] == (int64_t{1} << 62) + 1);
  CHECK(std::bit_cast<uint32_t>(parse_npy(npy(header("<f4", "1,"), "\1\0\xa0\x7f"s), "a").span<float>()[0]) == 0x7fa00001);
  CHECK_THROWS_WITH(parse_npy(npy(header("<u8", "1,"), std::string(8, '\xff')), "a"),
                    "a: an unsigned integer of 64 bits must be below 2^63, got 18446744073709551615");
}

TEST_CASE("archives of numpy.savez and savez_compressed are read, and what is written here") {
  const auto stored = parse_npz(kStored, "s.npz"), deflated = parse_npz(kDeflated, "c.npz");
  REQUIRE(stored.size() == 1);
  CHECK(npy_bytes(stored.at("a/b")) == npy_bytes(Tensor::of<float>({1, 2}, {1, 2})));
  REQUIRE(deflated.size() == 1);
  CHECK(npy_bytes(deflated.at("x")) == npy_bytes(Tensor({40}, DType::i64)));

  const TemporaryFolder folder;
  const std::vector<std::pair<std::string, Tensor>> arrays = {{"\xc3\xa9/b", Tensor::of<float>({2}, {std::bit_cast<float>(0x7fa00001), -0.0f})},
                                                              {"empty", Tensor({0, 3}, DType::i32)},
                                                              {"scalar", Tensor(Shape{}, DType::f64)}};
  write_npz(folder / "x.npz", arrays);
  const auto read = read_npz(folder / "x.npz");
  CHECK(read.size() == arrays.size());
  for (const auto& [name, array] : arrays) CHECK(npy_bytes(read.at(name)) == npy_bytes(array));
  write_npz(folder / "none.npz", {});
  CHECK(read_npz(folder / "none.npz").empty());

  const Tensor one({1});
  for (const char* name : {"", "/etc/x", "../x", "a/../x", "a//b", "a\\b", "."}) {
    CAPTURE(name);
    CHECK_THROWS_WITH(write_npz(folder / "bad.npz", std::vector<std::pair<std::string, Tensor>>{{name, one}}), Contains("relative paths"));
  }
  CHECK_THROWS_WITH(write_npz(folder / "bad.npz", std::vector<std::pair<std::string, Tensor>>{{"a", one}, {"a", one}}), Contains("'a' is repeated"));
  CHECK_FALSE(std::filesystem::exists(folder / "bad.npz"));
}

TEST_CASE("malformed archives are refused with the name and the reason") {
  const size_t entry = kStored.size() - 22 - 53;  // of the directory
  const auto at = [&](size_t offset) { return static_cast<int>(entry + offset); };
  const auto renamed = [&](const std::string& name) { return patched(patched(kStored, 30, name), at(46), name); };
  const std::string header_only = kStored.substr(0, entry);
  for (const auto& [bytes, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "is no .npz file"},
           {std::string(100, 'x'), "is no .npz file"},
           {kStored.substr(0, kStored.size() - 1), "truncated"},
           {kStored + "x", "truncated"},
           {header_only, "truncated"},
           {patched(kStored, -2, "\1"), "directory of the .npz file is damaged"},        // a comment
           {patched(kStored, -10, "\x34"), "directory of the .npz file is damaged"},     // its size
           {patched(kStored, -12, "\2\0\2"s), "directory of the .npz file is damaged"},  // counts that differ
           {patched(patched(kStored, -14, "\2\0\2\0"s), 0, "P"), "says 2 arrays, it holds 1"},
           {patched(kStored, -14, std::string(4, '\xff')), "zip64"},
           {patched(kStored, -6, std::string(4, '\xff')), "zip64"},
           {patched(kStored, at(20), std::string(4, '\xff')), "zip64"},
           {patched(kStored, at(8), "\1"), "encrypted"},
           {patched(kStored, at(10), "\14"), "stored or deflated, got the method 12"},
           {patched(kStored, at(20), "\x87"), "must have one size"},
           {patched(kStored, at(42), "\1"), "no header at byte 1"},
           {patched(kStored, at(28), "\6"), "must hold .npy files, got 'a/b.np'"},  // length of its name
           {patched(kStored, at(28), "\10"), "directory of the .npz file is damaged"},
           {patched(kStored, 8, "\10"), "must agree with the directory"},   // method
           {patched(kStored, 30, "b"), "must agree with the directory"},    // name
           {patched(kStored, 18, "\0"s), "must agree with the directory"},  // size
           {patched(patched(kStored, 26, "\xff\xff"), 0, "P"), "must end at byte"},
           {patched(kStored, 0x80, "!"), "checksum differs"},
           {renamed("../"), "relative paths"},
           {renamed("/a/"), "relative paths"},
           {renamed("a/\1.txt"), "must hold .npy files"},
           {renamed("\xc3\xa9"), "marked as UTF-8"},
           {patched(kDeflated, 80, "\x55\x55\x55"), "damaged"},
       }) {
    CAPTURE(message);
    CHECK_THROWS_WITH(parse_npz(bytes, "a.npz"), Catch::StartsWith("a.npz: ") && Contains(message));
    CHECK_THROWS_AS(parse_npz(bytes, "a.npz"), InputError);
  }

  // Two entries for one member overlap, or repeat a name; a size that deflate cannot reach is refused before memory is asked for.
  const std::string directory = kStored.substr(entry, 53), member = kStored.substr(0, entry);
  const auto twice = [&](const std::string& second) {
    return member + directory + second + patched(patched(kStored.substr(entry + 53), 8, "\2\0\2\0"s), 12, "\x6a");
  };
  CHECK_THROWS_WITH(parse_npz(twice(directory), "a.npz"), "a.npz: the name 'a/b' is repeated");
  CHECK_THROWS_WITH(parse_npz(twice(patched(directory, 46, "c")), "a.npz"), Contains("must agree with the directory"));
  const int packed = static_cast<int>(kDeflated.size() - 22 - 51);
  CHECK_THROWS_WITH(parse_npz(patched(kDeflated, packed + 24, "\0\0\0\x7f"s), "a.npz"),
                    Contains("must not unpack to more than 100 times as many, got 2130706432"));
  CHECK_THROWS_WITH(parse_npz(patched(kDeflated, packed + 24, "\xbf"), "a.npz"), Contains("must be deflated data of 447 bytes"));
  CHECK_THROWS_WITH(parse_npz(patched(kDeflated, packed + 24, "\xc1"), "a.npz"), Contains("must be deflated data of 449 bytes"));

  // A member inside another's content.
  const Tensor content({static_cast<int64_t>(member.size() + 3) / 4}, DType::i32);
  std::memcpy(content.view().data, member.data(), member.size());
  const TemporaryFolder folder;
  write_npz(folder / "outer.npz", std::vector<std::pair<std::string, Tensor>>{{"outer", content}});
  const std::string outer = read_file(folder / "outer.npz", 1 << 20), inner(1, static_cast<char>(outer.find(member)));
  const std::string last = outer.substr(outer.size() - 22), both(1, static_cast<char>(last[12] + 53));
  const std::string nested = outer.substr(0, outer.size() - 22) + patched(directory, 42, inner) + patched(patched(last, 8, "\2\0\2\0"s), 12, both);
  CHECK_THROWS_WITH(parse_npz(nested, "a.npz"), "a.npz: 'outer' and 'a/b' overlap");

  // No prefix and no changed byte may do worse than an error.
  for (const std::string& good : {kStored, kDeflated})
    for (size_t i = 0; i < good.size(); ++i) {
      for (int byte : {0, 1, 39, 127, 255}) try {
          parse_npz(patched(good, static_cast<int>(i), std::string(1, static_cast<char>(byte))), "a");
        } catch (const InputError&) {
        }
      CHECK_THROWS_AS(parse_npz(good.substr(0, i), "a"), InputError);
    }
}
