// zlib in chunks of 1 MiB; the limit is checked after each, so a small file cannot fill the memory.
#include "datasets/gzip.h"

#include <zlib.h>

#include <algorithm>

#include "core/check.h"
#include "core/file.h"

namespace sinkgrad {

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string gunzip(std::string_view compressed, const std::string& path, uint64_t max_bytes) {
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  constexpr size_t kChunk = size_t{1} << 20;
  z_stream stream{};
  require<OutOfMemoryError>(inflateInit2(&stream, kGzipOnly) == Z_OK, path, ": decompressing needs more memory than there is");
  struct End {
    z_stream* stream;
    ~End() { inflateEnd(stream); }
  } end{&stream};

  std::string out;
  for (size_t used = 0;;) {
    // avail_in and avail_out are 32 bits wide: both sides advance by chunks.
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(compressed.data()));
    stream.avail_in = static_cast<uInt>(std::min(compressed.size(), kChunk));
    out.resize(used + kChunk);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + used);
    stream.avail_out = kChunk;
    const uInt given = stream.avail_in;
    const int status = inflate(&stream, Z_NO_FLUSH);
    compressed.remove_prefix(given - stream.avail_in);
    used += kChunk - stream.avail_out;
    require<InputError>(used <= max_bytes, path, ": at most ", max_bytes, " bytes are read, the gzip stream holds more");
    require<InputError>(status != Z_BUF_ERROR, path, ": the gzip stream is truncated");
    require<InputError>(status == Z_OK || status == Z_STREAM_END, path, ": the gzip stream is damaged (", stream.msg ? stream.msg : "bad data", ")");
    if (status != Z_STREAM_END) continue;
    if (compressed.empty()) {
      out.resize(used);
      return out;
    }
    require<InputError>(is_gzip(compressed), path, ": ", compressed.size(), " bytes that are not gzip follow the gzip stream");
    inflateReset(&stream);
  }
}

std::string read_maybe_gzip(const std::filesystem::path& path, uint64_t max_bytes) {
  std::string bytes = read_file(path, max_bytes);
  return is_gzip(bytes) ? gunzip(bytes, path.string(), max_bytes) : bytes;
}

}  // namespace sinkgrad
