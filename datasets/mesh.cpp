// Numbers by from_chars: fast and the same in every locale. Counts are checked against the bytes at hand before anything is allocated.
#include "datasets/mesh.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <ostream>

#include "core/check.h"

namespace sinkgrad {
namespace {

constexpr std::string_view kSpace = " \t\v\f";

/// The lines of a text that hold more than space and comments.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
  }
  /// Goes to the next line; false at the end.
  bool next() {
    while (!rest_.empty()) {
      const size_t end = rest_.find_first_of("\r\n");
      line_ = rest_.substr(0, end);
      const bool crlf = end != std::string_view::npos && rest_.substr(end, 2) == "\r\n";
      rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + (crlf ? 2 : 1));
      ++number_;
      line_ = line_.substr(0, line_.find('#'));
      if (line_.find_first_not_of(kSpace) != std::string_view::npos) return true;
    }
    line_ = {};
    return false;
  }
  /// The next word of the line; empty at its end.
  std::string_view word() {
    line_.remove_prefix(std::min(line_.find_first_not_of(kSpace), line_.size()));
    const std::string_view found = line_.substr(0, line_.find_first_of(kSpace));
    line_.remove_prefix(found.size());
    return found;
  }
  /// Puts characters of the word just read back.
  void push_back(std::string_view tail_of_word) { line_ = {tail_of_word.data(), tail_of_word.size() + line_.size()}; }
  size_t number() const { return number_; }
  size_t bytes_left() const { return rest_.size(); }

 private:
  std::string_view rest_, line_;
  size_t number_ = 0;
};

/// A word of the file for a message: short, without control characters.
struct Printable {
  std::string_view word;
  friend std::ostream& operator<<(std::ostream& out, const Printable& p) {
    for (const char c : p.word.substr(0, 20)) out << (c < ' ' || c > '~' ? '?' : c);
    return out;
  }
};

/// "path:line: " of the line at hand when it is printed, which happens only in an error.
struct Place {
  const std::string& path;
  const Lines& lines;
  friend std::ostream& operator<<(std::ostream& out, const Place& p) { return out << p.path << ':' << p.lines.number() << ": "; }
};

class OffParser {
 public:
  OffParser(std::string_view bytes, const std::string& path) : lines_(bytes), path_(path) {}

  Mesh parse(OffHeader header) {
    Mesh mesh;
    read_header(mesh);
    require<InputError>(!mesh.glued_header || header == OffHeader::any, where(),
                        "the counts are glued to the word OFF, a strict header has a space or a new line between");
    const uint64_t vertices = count("the number of vertices"), faces = count("the number of faces");
    if (const std::string_view edges = lines_.word(); !edges.empty()) parse_count(edges, "the number of edges");
    require_line_end("the counts");
    constexpr uint64_t kVertexBytes = 6, kFaceBytes = 2;  // "0 0 0\n" and "0\n", the last line perhaps without its end
    const uint64_t left = lines_.bytes_left() + 1;
    require<InputError>(vertices <= left / kVertexBytes && faces <= left / kFaceBytes, where(), vertices, " vertices and ", faces,
                        " faces cannot follow, the file has only ", left - 1, " more bytes");
    mesh.vertices.reserve(vertices);
    mesh.triangles.reserve(faces);
    for (uint64_t i = 0; i < vertices; ++i) mesh.vertices.push_back(vertex(i, vertices));
    for (uint64_t i = 0; i < faces; ++i) add_face(mesh, i, faces);
    require<InputError>(!lines_.next(), where(), "nothing may follow the last face, the counts promise ", vertices, " vertices and ", faces,
                        " faces");
    return mesh;
  }

 private:
  Place where() const { return {path_, lines_}; }

  /// Leaves the reader in front of the counts.
  void read_header(Mesh& mesh) {
    require<InputError>(lines_.next(), path_, ": an OFF file begins with OFF, the file is empty");
    const std::string_view first = lines_.word();
    const size_t at = first.find("OFF");
    if (at == std::string_view::npos) {
      require<InputError>(first[0] >= '0' && first[0] <= '9', where(), "not an OFF file: it begins with '", Printable{first}, "'");
      return lines_.push_back(first);  // the word OFF may be absent
    }
    const std::string_view kind = first.substr(0, at), tail = first.substr(at + 3);
    require<InputError>(kind.find_first_of("4n") == std::string_view::npos, where(), "vertices must have three coordinates, the header says ",
                        Printable{first.substr(0, at + 3)});
    require<InputError>(kind.find_first_not_of("STCN") == std::string_view::npos, where(), "unknown header '", Printable{first}, "'");
    has_extras_ = !kind.empty();
    if (!tail.empty()) {
      require<InputError>(tail[0] >= '0' && tail[0] <= '9', where(), "unknown header '", Printable{first}, "'");
      mesh.glued_header = true;
      return lines_.push_back(tail);
    }
    std::string_view next = lines_.word();
    if (next.empty()) {
      require<InputError>(lines_.next(), where(), "the counts of vertices and faces are missing");
      next = lines_.word();
    }
    require<InputError>(next != "BINARY", where(), "binary OFF files are not read, the file must be text");
    lines_.push_back(next);
  }

  uint64_t parse_count(std::string_view word, const char* what) const {
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    require<InputError>(error == std::errc() && end == word.data() + word.size() && value <= UINT32_MAX, where(), what,
                        " must be an integer below 2^32, got '", Printable{word}, "'");
    return value;
  }
  uint64_t count(const char* what) { return parse_count(lines_.word(), what); }

  double number(std::string_view word, const char* what) const {
    double value = 0;
    const char *begin = word.data(), *last = begin + word.size();
    if (word.starts_with("+")) ++begin;
    const auto [end, error] = std::from_chars(begin, last, value);
    // Below the smallest double a number is as good as 0.
    const bool tiny = error == std::errc::result_out_of_range && (word.find("e-") != word.npos || word.find("E-") != word.npos);
    require<InputError>(!word.empty() && (error == std::errc() || tiny) && end == last && std::abs(value) <= std::numeric_limits<float>::max(),
                        where(), what, " must be a finite number (f32), got '", Printable{word}, "'");
    return tiny ? 0 : value;
  }

  void require_line_end(const char* after) {
    const std::string_view more = lines_.word();
    require<InputError>(more.empty(), where(), "nothing may follow ", after, ", got '", Printable{more}, "'");
  }

  std::array<double, 3> vertex(uint64_t index, uint64_t of) {
    require<InputError>(lines_.next(), where(), "the file ends before vertex ", index, " of ", of);
    std::array<double, 3> v;
    for (double& x : v) x = number(lines_.word(), "a coordinate");
    if (has_extras_) return v;
    int more = 0;
    while (!lines_.word().empty()) ++more;
    require<InputError>(more == 0 || more == 3 || more == 4, where(), "a vertex has 3 coordinates and perhaps a colour of 3 or 4 numbers, got ",
                        3 + more, " numbers");
    return v;
  }

  void add_face(Mesh& mesh, uint64_t index, uint64_t of) {
    require<InputError>(lines_.next(), where(), "the file ends before face ", index, " of ", of);
    const uint64_t corners = count("the number of corners");
    std::array<uint32_t, 3> t{};
    for (uint64_t k = 0; k < corners; ++k) {
      const uint64_t v = count("a corner");
      require<InputError>(v < mesh.vertices.size(), where(), "a corner must be one of the ", mesh.vertices.size(), " vertices, counted from 0, got ",
                          v);
      if (k < 2) {
        t[k] = static_cast<uint32_t>(v);
      } else {
        t[2] = static_cast<uint32_t>(v);
        mesh.triangles.push_back(t);
        t[1] = t[2];
      }
    }
  }

  Lines lines_;
  const std::string& path_;
  bool has_extras_ = false;  // normals, colours or texture coordinates follow the coordinates
};

double area(const Mesh& mesh, const std::array<uint32_t, 3>& t) {
  const auto &a = mesh.vertices[t[0]], &b = mesh.vertices[t[1]], &c = mesh.vertices[t[2]];
  const double u[3] = {b[0] - a[0], b[1] - a[1], b[2] - a[2]}, v[3] = {c[0] - a[0], c[1] - a[1], c[2] - a[2]};
  return std::hypot(u[1] * v[2] - u[2] * v[1], u[2] * v[0] - u[0] * v[2], u[0] * v[1] - u[1] * v[0]) / 2;
}

}  // namespace

Mesh parse_off(std::string_view bytes, const std::string& path, OffHeader header) { return OffParser(bytes, path).parse(header); }

void sample_surface(const Mesh& mesh, RandomStream random, std::span<float> xyz, const std::string& path) {
  std::vector<double> sums;  // of the areas up to and including each triangle
  sums.reserve(mesh.triangles.size());
  double total = 0;
  for (const auto& t : mesh.triangles) sums.push_back(total += area(mesh, t));
  require<InputError>(total > 0 && std::isfinite(total), path, ": the mesh must have a surface to draw points on, got ", mesh.triangles.size(),
                      " triangles of area ", total);
  for (size_t i = 0; i + 2 < xyz.size(); i += 3) {
    const double pick = random.uniform() * total;  // below total but for rounding
    const auto found = std::upper_bound(sums.begin(), sums.end(), std::min(pick, std::nextafter(total, 0.0)));
    const auto& t = mesh.triangles[static_cast<size_t>(found - sums.begin())];
    double s = random.uniform(), r = random.uniform();
    if (s > r) std::swap(s, r);
    for (size_t axis = 0; axis < 3; ++axis)
      xyz[i + axis] = static_cast<float>(s * mesh.vertices[t[0]][axis] + (r - s) * mesh.vertices[t[1]][axis] + (1 - r) * mesh.vertices[t[2]][axis]);
  }
}

}  // namespace sinkgrad
