// The safetensors reader and writer, and the atomic file below it. The golden file pins the bytes; everything malformed is refused.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <thread>

#include "core/file.h"
#include "core/safetensors.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path = fs::temp_directory_path() / cat("sinkgrad-test-safetensors-", ::getpid());
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  size_t files() const { return static_cast<size_t>(std::distance(fs::directory_iterator(path), fs::directory_iterator())); }
};

/// A file with this header and `data_bytes` bytes of data.
std::string file_of(const std::string& header, const std::string& data = "") {
  const uint64_t n = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &n, 8);
  return bytes + header + data;
}

std::string golden() {
  return std::string("\x38\0\0\0\0\0\0\0", 8) + "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}  " +
         std::string("\0\0\x80\x3f\0\0\0\x40", 8);
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const InputError& e) {
    REQUIRE_THAT(e.what(), !Contains("\n"));
    return e.what();
  }
  return "nothing thrown";
}

std::string refusal(const std::string& bytes) {
  return error_of([&] { parse_safetensors(bytes, "file"); });
}

/// A header with one entry of 8 bytes whose fields are given.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return file_of("{\"x\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}", std::string(8, '\0'));
}

}  // namespace

TEST_CASE("the golden file is written and read byte for byte: fault 79") {
  const Folder folder;
  const fs::path path = folder.path / "golden.safetensors";
  const Tensor x = Tensor::of<float>({2}, {1, 2});
  write_safetensors(path, std::vector<NamedView>{{"x", x.view()}});
  REQUIRE(golden().size() == 72);
  REQUIRE(read_file(path, 1000) == golden());
  const SafetensorsFile file = read_safetensors(path);
  REQUIRE(file.tensors.size() == 1);
  REQUIRE(file.metadata.empty());
  REQUIRE(file.tensors.at("x").shape() == Shape{2});
  REQUIRE(to_doubles(file.tensors.at("x").view()) == std::vector<double>{1, 2});
}

TEST_CASE("every dtype, shape and metadata survive a round trip, and the order given does not matter") {
  const Folder folder;
  const fs::path path = folder.path / "a.safetensors", other = folder.path / "b.safetensors";
  const Tensor a = Tensor::of<float>({2, 3}, {1, -2, 3e-40f, std::numeric_limits<float>::infinity(), -0.0f, std::nanf("")});
  const Tensor b = Tensor::of<double>({2}, {1e300, -1e-300}), c = Tensor::of<int32_t>({}, {-7}), d = Tensor::of<int64_t>({1, 1}, {INT64_MIN});
  const Tensor empty(Shape{3, 0}, DType::f64);
  std::vector<NamedView> list{{"model.a \"\xc3\xa9\n", a.view()}, {"b", b.view()}, {"c", c.view()}, {"d", d.view()}, {"empty", empty.view()}};
  const std::map<std::string, std::string> metadata{{"step", "12"}, {"recipe", "{\"lr\": 0.1}\n"}};
  write_safetensors(path, list, metadata);
  std::reverse(list.begin(), list.end());
  write_safetensors(other, list, metadata);
  REQUIRE(read_file(path, 10000) == read_file(other, 10000));

  const SafetensorsFile file = read_safetensors(path);
  REQUIRE(file.metadata == metadata);
  REQUIRE(file.tensors.size() == list.size());
  for (const NamedView& t : list) {
    INFO(t.name);
    const View& read = file.tensors.at(t.name).view();
    REQUIRE(read.shape == t.view.shape);
    REQUIRE(read.dtype == t.view.dtype);
    REQUIRE(std::memcmp(read.data, t.view.data, read.bytes()) == 0);
  }
  // Eight-byte types come first, so that all data is aligned.
  const std::string bytes = read_file(path, 10000);
  REQUIRE(bytes.find("\"empty\"") < bytes.find("\"c\""));
  REQUIRE(bytes.find("\"d\"") < bytes.find("model.a"));
}

TEST_CASE("a view of rows is written as its values: fault 78") {
  const Folder folder;
  const Tensor x = Tensor::of<float>({3, 2}, {0, 1, 2, 3, 4, 5});
  write_safetensors(folder.path / "x", std::vector<NamedView>{{"x", x.view().rows(1, 3).reshaped({4})}});
  REQUIRE(to_doubles(read_safetensors(folder.path / "x").tensors.at("x").view()) == std::vector<double>{2, 3, 4, 5});
}

TEST_CASE("half precision and bytes are widened") {
  const auto read = [](const std::string& dtype, const std::string& data, int64_t n) {
    const std::string text = cat("{\"x\":{\"dtype\":\"", dtype, "\",\"shape\":[", n, "],\"data_offsets\":[0,", data.size(), "]}}");
    return parse_safetensors(file_of(text, data), "file").tensors.at("x");
  };
  const auto words = [](std::vector<uint16_t> w) { return std::string(reinterpret_cast<const char*>(w.data()), 2 * w.size()); };
  const Tensor half = read("F16", words({0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x83ff, 0x7c00, 0x3555}), 8);
  REQUIRE(half.dtype() == DType::f32);
  const double inf = std::numeric_limits<double>::infinity();
  REQUIRE(to_doubles(half.view()) == std::vector<double>{1, -2, 65504, 0x1p-14, 0x1p-24, -1023 * 0x1p-24, inf, 0.333251953125});
  const Tensor special = read("F16", words({0x7e00, 0x8000}), 2);
  REQUIRE(std::isnan(to_doubles(special.view())[0]));
  REQUIRE(std::signbit(to_doubles(special.view())[1]));
  REQUIRE(to_doubles(read("BF16", words({0x3f80, 0xc040}), 2).view()) == std::vector<double>{1, -3});
  REQUIRE(read("U8", "\x01\xff", 2).dtype() == DType::i32);
  REQUIRE(to_doubles(read("U8", "\x01\xff", 2).view()) == std::vector<double>{1, 255});
  REQUIRE(to_doubles(read("BOOL", std::string("\0\1", 2), 2).view()) == std::vector<double>{0, 1});
}

TEST_CASE("a file of the wrong length is refused with both lengths: fault 74") {
  for (const size_t cut : {0, 7}) REQUIRE_THAT(refusal(golden().substr(0, cut)), Contains(cat("file has ", cut, " bytes")) && Contains("8 bytes"));
  for (const size_t cut : {8, 40, 63})
    REQUIRE_THAT(refusal(golden().substr(0, cut)), Contains(cat("file has ", cut, " bytes")) && Contains("ends at 64"));
  REQUIRE(refusal(golden().substr(0, 71)) == "file: file has 71 bytes, header says 72");
  REQUIRE(refusal(golden() + "x") == "file: file has 73 bytes, header says 72");
  REQUIRE_THAT(refusal(std::string(8, '\xff') + golden()), Contains("at most 100000000 bytes") && Contains("18446744073709551615"));
}

TEST_CASE("the header limit holds when reading and when writing: fault 76") {
  const Folder folder;
  const fs::path path = folder.path / "x";
  const Tensor x = Tensor::of<float>({2}, {1, 2});
  write_safetensors(path, std::vector<NamedView>{{"x", x.view()}}, {}, 56);
  REQUIRE_THAT(error_of([&] {
                 write_safetensors(path, std::vector<NamedView>{{"longer name", x.view()}}, {}, 56);
               }),
               Contains(path.string()) && Contains("at most 56 bytes"));
  REQUIRE(read_file(path, 1000) == golden());
  REQUIRE(folder.files() == 1);
  REQUIRE(parse_safetensors(golden(), "file", 56).tensors.size() == 1);
  REQUIRE_THAT(error_of([] { parse_safetensors(golden(), "file", 55); }), Contains("at most 55 bytes") && Contains("say 56"));
}

TEST_CASE("malformed headers are refused, each with its own sentence") {
  REQUIRE_THAT(refusal(one("\"F32\"", "[2]", "[0,8]")), Contains("nothing thrown"));
  REQUIRE_THAT(refusal(file_of(" {}")), Contains("JSON object from byte 8"));
  REQUIRE_THAT(refusal(file_of("")), Contains("JSON object from byte 8"));
  REQUIRE_THAT(refusal(file_of("    ")), Contains("JSON object from byte 8"));
  REQUIRE_THAT(refusal(file_of("{}\n")), Contains("padded with spaces only"));
  REQUIRE_THAT(refusal(file_of("{}{}")), Contains("not valid JSON at byte 10"));
  REQUIRE_THAT(refusal(file_of("{\"\xff\":1}")), Contains("not valid JSON"));
  REQUIRE_THAT(refusal(file_of("{\"x\":1e999}")), Contains("number out of range"));
  REQUIRE_THAT(refusal(file_of("{\"x\":" + std::string(100000, '[') + "}")), Contains("nested too deeply"));
  REQUIRE_THAT(refusal(file_of("{\"x\":1}")), Contains("\"x\" must have exactly dtype, shape and data_offsets"));
  REQUIRE_THAT(refusal(file_of("{\"__metadata__\":[]}")), Contains("__metadata__ must be an object of strings"));
  REQUIRE_THAT(refusal(file_of("{\"__metadata__\":{\"a\":1}}")), Contains("__metadata__ \"a\" must be a string"));
  REQUIRE_THAT(refusal(one("\"F32\"", "[2]", "[0,8],\"more\":1")), Contains("exactly"));
  REQUIRE_THAT(refusal(one("4", "[2]", "[0,8]")), Contains("dtype must be a string"));
  REQUIRE_THAT(refusal(one("\"C64\"", "[1]", "[0,8]")), Contains("dtype \"C64\"") && Contains("can be read"));
  for (const char* shape : {"2", "[-2]", "[2.0]", "[\"2\"]", "[null]", "[18446744073709551616]"})
    REQUIRE_THAT(refusal(one("\"F32\"", shape, "[0,8]")), Contains("shape must be a list of unsigned integers"));
  for (const char* offsets : {"8", "[0]", "[0,8,8]", "[-1,8]", "[0,8.0]"})
    REQUIRE_THAT(refusal(one("\"F32\"", "[2]", offsets)), Contains("data_offsets must be two unsigned integers"));
  for (const char* offsets : {"[8,0]", "[0,4]", "[18446744073709551608,0]", "[9223372036854775800,9223372036854775808]"})
    REQUIRE_THAT(refusal(one("\"F32\"", "[2]", offsets)), Contains("shape (2) needs 8 bytes"));
  REQUIRE_THAT(refusal(one("\"F32\"", "[1,1,1,1,1,1,2]", "[0,8]")), Contains("7 dimensions"));
  for (const char* shape : {"[4611686018427387904,4]", "[9223372036854775808]", "[2147483648,2147483648]", "[0,2147483648,2147483648]"})
    REQUIRE_THAT(refusal(one("\"F32\"", shape, "[0,8]")), Contains("overflows 64 bits"));
  // Names from the file are shown in one printable line.
  REQUIRE_THAT(refusal(file_of("{\"a\\n\\u001b" + std::string(1000, 'b') + "\":1}")),
               Contains("\"a\\n\\u001bbbb") && Contains("...") && !Contains(std::string(90, 'b')));
}

TEST_CASE("tensors must tile the data") {
  const auto two = [](const std::string& first, const std::string& second) {
    const auto entry = [](const std::string& offsets) { return "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + offsets + "}"; };
    return file_of("{\"a\":" + entry(first) + ",\"b\":" + entry(second) + "}", std::string(8, '\0'));
  };
  REQUIRE(parse_safetensors(two("[4,8]", "[0,4]"), "file").tensors.size() == 2);
  REQUIRE_THAT(refusal(two("[0,4]", "[0,4]")), Contains("overlap"));
  REQUIRE_THAT(refusal(two("[0,4]", "[3,7]")), Contains("\"b\" begins at offset 3, must begin at 4") && Contains("overlap"));
  REQUIRE_THAT(refusal(two("[0,4]", "[5,9]")), Contains("belong to no tensor"));
  REQUIRE_THAT(refusal(two("[1,5]", "[5,9]")), Contains("must begin at 0"));
}

TEST_CASE("repeated keys are found, also when written differently") {
  const std::string entry = "{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}";
  REQUIRE(parse_safetensors(file_of("{\"a\":" + entry + ",\"b\":" + entry + "}"), "file").tensors.size() == 2);
  REQUIRE_THAT(refusal(file_of("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}")), Contains("\"a\" occurs twice"));
  REQUIRE_THAT(refusal(file_of("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}")), Contains("\"k\" occurs twice"));
  REQUIRE_THAT(refusal(one("\"F32\",\"dtype\":\"F32\"", "[2]", "[0,8]")), Contains("\"dtype\" occurs twice"));

  const Folder folder;
  const Tensor x(Shape{1});
  for (const std::vector<NamedView>& list : {std::vector<NamedView>{{"x", x.view()}, {"x", x.view()}}, {{"__metadata__", x.view()}}})
    REQUIRE_THAT(error_of([&] { write_safetensors(folder.path / "x", list); }), Contains("repeated or reserved"));
  REQUIRE_THAT(error_of([&] { write_safetensors(folder.path / "x", std::vector<NamedView>{{"\xff", x.view()}}); }), Contains("UTF-8"));
  REQUIRE(folder.files() == 0);
}

TEST_CASE("every prefix and every changed byte of a file is read or refused, never a crash") {
  const std::string bytes = golden();
  for (size_t i = 0; i < bytes.size(); ++i) {
    REQUIRE_THROWS_AS(parse_safetensors(bytes.substr(0, i), "file"), InputError);
    for (const int flip : {1, 2, 16, 128, 255}) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      try {
        parse_safetensors(changed, "file");
      } catch (const InputError&) {
      }
    }
  }
}

TEST_CASE("reading a file has a limit and reports the system's reason") {
  const Folder folder;
  write_file(folder.path / "a", "12345");
  REQUIRE(read_file(folder.path / "a", 5) == "12345");
  REQUIRE_THROWS_WITH(read_file(folder.path / "a", 4), Contains("at most 4 bytes are read, the file has 5"));
  REQUIRE_THROWS_AS(read_file(folder.path / "none", 4), IoError);
  REQUIRE_THROWS_WITH(read_file(folder.path / "none", 4), Contains((folder.path / "none").string()) && Contains("No such file"));
  REQUIRE(read_file("/proc/self/comm", 100).ends_with("\n"));  // a regular file that says it has 0 bytes
}

TEST_CASE("devices are not read, other libraries get no pipes, and a pipe without a writer is not waited for") {
  const Folder folder;
  const std::filesystem::path pipe = folder.path / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const auto& [path, what] :
       {std::pair(pipe, "pipe"), std::pair(folder.path, "folder"), std::pair(std::filesystem::path("/dev/zero"), "device")}) {
    const std::string sentence = path.string() + ": must be a regular file, it is a " + what;
    REQUIRE_THROWS_WITH(require_regular(path), sentence);
    if (path == pipe) continue;
    REQUIRE_THROWS_WITH(read_file(path, 1 << 20), sentence);
    REQUIRE_THROWS_AS(read_file(path, 1 << 20), IoError);
  }
  REQUIRE_NOTHROW(require_regular(folder.path / "none"));
  REQUIRE_THROWS_WITH(read_file(pipe, 1 << 20), pipe.string() + ": is a pipe, and nobody has opened it for writing");
}

TEST_CASE("a pipe is read to its end, from a writer that comes late and pauses, within the limit") {
  const Folder folder;
  const std::filesystem::path pipe = folder.path / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const std::string half(200000, 'x');
  const auto write_slowly = [&](int pauses, const std::string& part) {
    return std::thread([&pipe, pauses, part] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::ofstream file(pipe);
      for (int i = 0; i < pauses; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        file << part << std::flush;
      }
    });
  };
  for (const int pauses : {0, 2}) {
    std::thread writer = write_slowly(pauses, half);
    std::string bytes;
    REQUIRE_NOTHROW(bytes = read_file(pipe, 1 << 20));
    writer.join();
    REQUIRE(bytes == (pauses == 0 ? "" : half + half));
  }
  std::thread writer = write_slowly(1, "123456");
  REQUIRE_THROWS_WITH(read_file(pipe, 5), Contains("at most 5 bytes are read, the file has more"));
  writer.join();
}

TEST_CASE("a failed write leaves the old file and no temporary file: fault 81") {
  const Folder folder;
  const fs::path path = folder.path / "a";
  write_file(path, "old");
  {
    AtomicFile file(path);
    file.write("half of the n");
    REQUIRE(folder.files() == 2);
    REQUIRE(read_file(path, 100) == "old");
  }
  REQUIRE(folder.files() == 1);
  {
    // A full disk, as far as this process can see: write() fails with EFBIG beyond the limit.
    struct rlimit before {};
    getrlimit(RLIMIT_FSIZE, &before);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    struct rlimit small = before;
    small.rlim_cur = 1000;
    setrlimit(RLIMIT_FSIZE, &small);
    std::string message;
    try {
      write_file(path, std::string(5000, 'x'));
    } catch (const IoError& e) {
      message = e.what();
    }
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    REQUIRE_THAT(message, Contains(path.string()) && Contains("File too large"));
  }
  REQUIRE(folder.files() == 1);
  REQUIRE(read_file(path, 100) == "old");
  write_file(path, "new");
  REQUIRE(read_file(path, 100) == "new");
  REQUIRE_THROWS_WITH(write_file(folder.path / "none" / "a", ""), Contains("No such file"));
  REQUIRE_THROWS_AS(write_file(folder.path, ""), IoError);
  REQUIRE_THROWS_WITH(write_file("/dev/null", ""), Contains("regular file"));
}

TEST_CASE("temporary files of dead processes are removed by the next write, those in use and other files are not") {
  const Folder folder;
  const fs::path stale = folder.path / ".sinkgrad-1-0.tmp", used = folder.path / ".sinkgrad-2-0.tmp", other = folder.path / "other.tmp";
  const int locked = ::open(used.c_str(), O_CREAT | O_WRONLY, 0600);
  REQUIRE(::flock(locked, LOCK_EX) == 0);
  ::close(::open(stale.c_str(), O_CREAT | O_WRONLY, 0600));
  ::close(::open(other.c_str(), O_CREAT | O_WRONLY, 0600));
  AtomicFile first(folder.path / "a");
  write_file(folder.path / "b", "b");
  REQUIRE(!fs::exists(stale));
  REQUIRE(fs::exists(used));
  REQUIRE(fs::exists(other));
  first.write("a");
  first.commit();
  REQUIRE(read_file(folder.path / "a", 10) == "a");
  ::close(locked);
  write_file(folder.path / "b", "b");
  REQUIRE(!fs::exists(used));
}
