// JPEG files to RGB pixels, by libjpeg.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sinkgrad {

/// 8-bit RGB, row-major, three bytes a pixel.
struct Image {
  int64_t height = 0, width = 0;
  std::vector<uint8_t> pixels;
};

/// How a file stores its colours. Grey is replicated; CMYK becomes RGB without a colour profile.
enum class JpegColour : uint8_t { rgb, grey, cmyk };

struct JpegImage {
  Image image;
  JpegColour colour = JpegColour::rgb;
};

/// Decodes a whole file; its EXIF orientation is not applied. InputError (beginning with `path`) for what is not JPEG, is truncated or
/// damaged, or has more than max_pixels, which is checked before memory is taken. Bytes after the image and stray bytes between its
/// markers do no harm.
JpegImage decode_jpeg(std::string_view bytes, const std::string& path, int64_t max_pixels = 100'000'000);

}  // namespace sinkgrad
