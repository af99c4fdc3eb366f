// NumPy's files: what NumPy writes is read, what is written is the format to the byte, and every malformed file is refused with a sentence.
#include <catch2/catch.hpp>
#include <cmath>
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
