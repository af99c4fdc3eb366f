// OFF files: every header variant that is met in the wild, every mistake with file and line, and points that are uniform by area.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/check.h"
#include "datasets/mesh.h"
#include "tiny_data.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

const std::string kBody = "0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 1 2\n3 0 1 3\n3 0 2 3\n3 1 2 3\n";

std::string refusal(const std::string& text, OffHeader header = OffHeader::any) {
  try {
    parse_off(text, "a.off", header);
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing thrown";
}

}  // namespace

TEST_CASE("fault 59: every header variant gives the same mesh") {
  const Mesh plain = parse_off("OFF\n4 4 6\n" + kBody, "a.off");
  REQUIRE(plain.vertices.size() == 4);
  CHECK(plain.vertices[2] == std::array<double, 3>{0, 1, 0});
  CHECK(plain.triangles == std::vector<std::array<uint32_t, 3>>{{0, 1, 2}, {0, 1, 3}, {0, 2, 3}, {1, 2, 3}});
  CHECK_FALSE(plain.glued_header);
  std::string crlf = "OFF\r\n4 4 6\r\n", old_mac = "OFF\r4 4 6\r";
  for (const char c : kBody) crlf += c == '\n' ? "\r\n" : std::string(1, c), old_mac += c == '\n' ? '\r' : c;
  for (const std::string& text : std::vector<std::string>{
           "OFF 4 4 6\n" + kBody, "OFF4 4 6\n" + kBody, "OFF\n4 4\n" + kBody, "4 4 6\n" + kBody, "\xEF\xBB\xBFOFF\n4 4 6\n" + kBody, crlf, old_mac,
           "\n# a comment\n\nOFF # the word\n\n4 4 6 # counts\n# more\n" + kBody + "\n\n", "OFF\n4 4 0\n" + kBody.substr(0, kBody.size() - 1),
           "OFF\n4 4 6\n  0 0 0\n\t+1.0 0e0 -0\n0 1 0 255 0 0\n0 0 1 0.5 0.5 0.5 1\n3 0 1 2 255 0 0\n3 0 1 3\n3  0 2 3 7\n3 1 2 3\n",
           std::string("CNOFF\n4 4 6\n0 0 0 0 0 1 1 1 1 1\n1 0 0 0 0 1 1 1 1 1\n0 1 0 0 0 1 1 1 1 1\n0 0 1 0 0 1 1 1 1 1\n3 0 1 2\n3 0 1 3\n3 0 2 "
                       "3\n3 1 2 3\n"),
           "COFF 4 4 6\n" + kBody, "STOFF\n4 4 6\n" + kBody}) {
    CAPTURE(text);
    const Mesh mesh = parse_off(text, "a.off");
    CHECK(mesh.vertices == plain.vertices);
    CHECK(mesh.triangles == plain.triangles);
    CHECK(mesh.glued_header == text.starts_with("OFF4"));
  }
  CHECK_THAT(refusal("OFF4 4 6\n" + kBody, OffHeader::strict), Contains("a.off:1: the counts are glued"));
  CHECK(refusal("OFF 4 4 6\n" + kBody, OffHeader::strict) == "nothing thrown");
}

TEST_CASE("polygons become fans; faces of one or two corners have no surface") {
  const Mesh mesh = parse_off("OFF\n5 3 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n-1 .5 0\n5 0 1 2 3 4\n2 0 1\n1 3\n", "a.off");
  CHECK(mesh.triangles == std::vector<std::array<uint32_t, 3>>{{0, 1, 2}, {0, 2, 3}, {0, 3, 4}});
}

TEST_CASE("every malformed OFF file has its own sentence with file and line") {
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "a.off: an OFF file begins with OFF, the file is empty"},
           {"# nothing\n\n", "the file is empty"},
           {"ply\nformat ascii 1.0\n", "a.off:1: not an OFF file: it begins with 'ply'"},
           {std::string("\x7f"
                        "ELF\x02",
                        5),
            "not an OFF file: it begins with '?ELF?'"},
           {"OFF BINARY\n", "a.off:1: binary OFF files are not read"},
           {"4OFF\n4 4 6\n", "a.off:1: vertices must have three coordinates, the header says 4OFF"},
           {"nOFF\n5\n", "the header says nOFF"},
           {"XOFF\n1 1 0\n", "a.off:1: unknown header 'XOFF'"},
           {"OFFSET 3\n", "unknown header 'OFFSET'"},
           {"OFF\n", "a.off:1: the counts of vertices and faces are missing"},
           {"OFF\n4\n" + kBody, "a.off:2: the number of faces must be an integer"},
           {"OFF\n4 -4 6\n" + kBody, "got '-4'"},
           {"OFF\n4 4 6 9\n" + kBody, "a.off:2: nothing may follow the counts, got '9'"},
           {"OFF\n4000000000 4 0\n" + kBody, "a.off:2: 4000000000 vertices and 4 faces cannot follow, the file has only 56 more bytes"},
           {"OFF\n99999999999 4 0\n" + kBody, "an integer below 2^32"},
           {"OFF\n5 4 6\n" + kBody, "a.off:7: a vertex has 3 coordinates"},  // a face was taken for a vertex
           {"OFF\n4 5 6\n" + kBody, "a.off:10: the file ends before face 4 of 5"},
           {"OFF\n4 3 6\n" + kBody, "a.off:10: nothing may follow the last face"},
           {"OFF\n1 0 0\n1 2\n# comment\n", "a.off:3: a coordinate must be a finite number (f32), got ''"},
           {"OFF\n1 0 0\n1 2 nan\n", "got 'nan'"},
           {"OFF\n1 0 0\n1 2 1e999\n", "got '1e999'"},
           {"OFF\n1 0 0\n1 2 -3.5e38\n", "got '-3.5e38'"},  // no f32
           {"OFF\n1 0 0\n1 2 -3.4e38\n", "nothing thrown"},
           {"OFF\n1 0 0\n1 2 1e-999\n", "nothing thrown"},
           {"OFF\n1 0 0\n1 2 3x\n", "got '3x'"},
           {"OFF\n1 0 0\n1 2 3 4\n", "a.off:3: a vertex has 3 coordinates and perhaps a colour of 3 or 4 numbers, got 4 numbers"},
           {"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 3\n", "a.off:6: a corner must be one of the 3 vertices, counted from 0, got 3"},
           {"OFF\r\n3 1 0\r\n0 0 0\r\n1 0 0\r\n0 1 0\r\n3 0 1 3\r\n", "a.off:6: a corner must be one of"},
           {"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 -1\n", "a.off:6: a corner must be an integer"},
           {"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n4 0 1 2\n", "a.off:6: a corner must be an integer below 2^32, got ''"},
       }) {
    CAPTURE(text);
    CHECK_THAT(refusal(text), Contains(message));
  }
}

TEST_CASE("points on a surface are uniform by area and by place, whatever the triangles") {
  // A rectangle 4 x 1 of one large and two small triangles, and a repeated corner without area.
  const Mesh mesh = parse_off("OFF\n5 4 0\n0 0 7\n4 0 7\n4 1 7\n0 1 7\n2 1 7\n3 0 1 4\n3 1 2 4\n3 0 4 3\n3 0 0 4\n", "a.off");
  std::vector<float> xyz(3 * 40'000);
  sample_surface(mesh, RandomStream(3, "surface"), xyz, "a.off");
  int cells[8][2] = {};
  double x_sum = 0, y_sum = 0;
  for (size_t i = 0; i < xyz.size(); i += 3) {
    REQUIRE(xyz[i + 2] == 7);
    REQUIRE((xyz[i] >= 0 && xyz[i] <= 4 && xyz[i + 1] >= 0 && xyz[i + 1] <= 1));
    ++cells[std::min(7, static_cast<int>(2 * xyz[i]))][std::min(1, static_cast<int>(2 * xyz[i + 1]))];
    x_sum += xyz[i], y_sum += xyz[i + 1];
  }
  for (const auto& column : cells)
    for (const int n : column) CHECK(std::abs(n - 2500) < 250);  // 5 standard deviations
  CHECK(x_sum / 40'000 == Approx(2).margin(0.03));
  CHECK(y_sum / 40'000 == Approx(0.5).margin(0.01));
  std::vector<float> again(3 * 40'000);
  sample_surface(mesh, RandomStream(3, "surface"), again, "a.off");
  CHECK(xyz == again);
  CHECK_THROWS_WITH(sample_surface(parse_off("OFF\n3 1 0\n0 0 0\n1 1 1\n2 2 2\n3 0 1 2\n", "a"), RandomStream(1, "s"), xyz, "a.off"),
                    Contains("a.off: the mesh must have a surface"));
  CHECK_THROWS_AS(sample_surface(parse_off("OFF\n3 0 0\n0 0 0\n1 1 1\n2 2 2\n", "a"), RandomStream(1, "s"), xyz, "a.off"), InputError);
}

TEST_CASE("real ModelNet and LabeledDB files") {
  for (const auto& [archive, files, glued] :
       {std::tuple("modelnet-samples/modelnet_samples.tar.gz", 23, 4), std::tuple("shapes-labeleddb/LabeledDB_A_10x20.tar.gz", 200, 0)}) {
    const tiny::fs::path path = tiny::real_data(archive);
    if (path.empty()) {
      WARN("skipped: no " << archive << " (set SINKGRAD_DATA to the folder of the real data)");
      continue;
    }
    const tiny::Folder folder;
    tiny::unpack(path, folder.path);
    int read = 0, with_glued = 0;
    for (const auto& entry : tiny::fs::recursive_directory_iterator(folder.path)) {
      if (entry.path().extension() != ".off") continue;
      const Mesh mesh = parse_off(read_file(entry.path(), 1 << 28), entry.path().string());
      CHECK(mesh.triangles.size() > 50);
      with_glued += mesh.glued_header;
      ++read;
    }
    CAPTURE(archive);
    CHECK(read == files);
    CHECK(with_glued == glued);
  }
}
