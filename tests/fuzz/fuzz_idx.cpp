// MNIST's idx files, raw and gzipped.
#include <zlib.h>

#include "datasets/idx.h"
#include "fuzz/fuzz.h"

namespace sinkgrad::fuzz {
namespace {

std::string gzip(std::string bytes) {
  std::string out(256, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string labels("\0\0\x08\1\0\0\0\2\3\4", 10), floats("\0\0\x0D\2\0\0\0\1\0\0\0\2\x3f\x80\0\0\x40\0\0\0", 20);
  return {labels, floats, gzip(labels), gzip(floats) + gzip("")};
}

void feed(std::string_view input) {
  const MemoryFile file(input);
  read_idx(file.path(), uint64_t{1} << 22).tensor();
}

}  // namespace sinkgrad::fuzz
