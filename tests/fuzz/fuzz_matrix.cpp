// Matrices on the command line: text, JSON or .npy.
#include <sstream>

#include "core/npy.h"
#include "fuzz/fuzz.h"
#include "tools/ui/matrix.h"

namespace sinkgrad::fuzz {

std::vector<std::string> seeds() {
  return {"1 2,3 # comment\n4 -inf nan; 7 8 9\n", "[[1, 2.5e3], [\"-inf\", -4]]", "{\"C\": [[1], [2]], \"other\": {}}",
          npy_bytes(Tensor::of<double>({1, 2}, {1, 2}))};
}

void feed(std::string_view input) {
  std::istringstream in{std::string(input)};
  read_matrix("-", in);
}

}  // namespace sinkgrad::fuzz
