// Meshes in the OFF format, and points on their surfaces.
#include <array>
#include <cmath>

#include "datasets/mesh.h"
#include "fuzz/fuzz.h"

namespace sinkgrad::fuzz {

std::vector<std::string> seeds() {
  return {"OFF\n4 4 6\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 1 2\n3 0 1 3\n3 0 2 3\n3 1 2 3\n",
          "OFF4 1 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0 255 0 0\n4 0 1 2 3 0.5 0.5 0.5\n",
          "\xEF\xBB\xBF"
          "CNOFF # comment\r\n3 1\r\n+0 0 0 1 2 3\r\n1e-400 0 1 1 2 3\r\n0 1 0 1 2 3\r\n3 0 1 2\r\n"};
}

void feed(std::string_view input) {
  const Mesh mesh = parse_off(input, "input");
  parse_off(input, "input", OffHeader::strict);
  std::array<float, 30> points;
  sample_surface(mesh, RandomStream(1, "fuzz"), points, "input");
  for (const float x : points)
    if (!std::isfinite(x)) __builtin_trap();
}

}  // namespace sinkgrad::fuzz
