// NumPy arrays.
#include "core/npy.h"
#include "fuzz/fuzz.h"

namespace sinkgrad::fuzz {
namespace {

std::string file(const std::string& header, const std::string& data, char version = 1) {
  std::string bytes = std::string("\x93NUMPY") + version + std::string(1, '\0') + static_cast<char>(header.size()) + std::string(1, '\0');
  return bytes + (version > 1 ? std::string(2, '\0') : "") + header + data;
}

}  // namespace

std::vector<std::string> seeds() {
  return {npy_bytes(Tensor::of<double>({2, 3}, {1, 2, 3, 4, 5, 6})),
          file("{'descr': '>f2', 'fortran_order': True, 'shape': (2, 2), }", std::string(8, '\x3c')),
          file("{'descr': '|b1', 'fortran_order': False, 'shape': (), }\n", "\1", 2)};
}

void feed(std::string_view input) { parse_npy(input, "input"); }

}  // namespace sinkgrad::fuzz
