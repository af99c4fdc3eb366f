// The least that a PNG needs: header, one block of deflated rows without filters, end (ISO/IEC 15948).
#include "tools/ui/png.h"

#include <zlib.h>

#include <string_view>

#include "core/check.h"

namespace sinkgrad {
namespace {

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8), static_cast<char>(value)};
}

const Bytef* bytes_of(std::string_view text) { return reinterpret_cast<const Bytef*>(text.data()); }

std::string chunk(std::string_view type, std::string_view content) {
  const std::string body = std::string(type) + std::string(content);
  return big_endian(static_cast<uint32_t>(content.size())) + body + big_endian(static_cast<uint32_t>(crc32_z(0, bytes_of(body), body.size())));
}

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k) word = word << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) text += i + k > bytes.size() ? '=' : kDigits[word >> (18 - 6 * k) & 63];
  }
  return text;
}

}  // namespace

std::string png_address(size_t width, size_t height, std::span<const uint8_t> pixels) {
  require(width > 0 && height > 0 && pixels.size() == 4 * width * height, "png: requires 4 bytes for each of ", width, " x ", height, " pixels, got ",
          pixels.size());
  std::string rows;
  for (size_t y = 0; y < height; ++y) {
    rows += '\0';  // no filter
    rows.append(reinterpret_cast<const char*>(&pixels[4 * width * y]), 4 * width);
  }
  uLongf size = compressBound(rows.size());
  std::string packed(size, '\0');
  require(compress2(reinterpret_cast<Bytef*>(packed.data()), &size, bytes_of(rows), rows.size(), Z_BEST_COMPRESSION) == Z_OK,
          "png: zlib failed to compress ", rows.size(), " bytes");
  packed.resize(size);
  const std::string header = big_endian(static_cast<uint32_t>(width)) + big_endian(static_cast<uint32_t>(height)) + std::string("\x08\x06\0\0\0", 5);
  return "data:image/png;base64," + base64("\x89PNG\r\n\x1a\n" + chunk("IHDR", header) + chunk("IDAT", packed) + chunk("IEND", ""));
}

}  // namespace sinkgrad
