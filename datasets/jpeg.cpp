// libjpeg reports errors by a function that must not return: it jumps back to decode(), which holds no objects with destructors.
#include "datasets/jpeg.h"

#include <csetjmp>
#include <cstdio>
// jpeglib.h needs the names of cstdio.
#include <jerror.h>
#include <jpeglib.h>

#include "core/check.h"

namespace sinkgrad {
namespace {

struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];  // of the first error, or of the first warning that means missing picture data
  bool damaged;
};

ErrorManager& manager(j_common_ptr info) { return *reinterpret_cast<ErrorManager*>(info->err); }

void fail(j_common_ptr info) {
  ErrorManager& errors = manager(info);
  if (!errors.damaged) info->err->format_message(info, errors.message);
  errors.damaged = true;
  std::longjmp(errors.jump, 1);
}

void note(j_common_ptr info, int level) {
  constexpr int kWarning = -1;
  ErrorManager& errors = manager(info);
  const int code = info->err->msg_code;
  const bool harmless = code == JWRN_EXTRANEOUS_DATA || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM || code == JWRN_TOO_MUCH_DATA;
  if (level != kWarning || harmless || errors.damaged) return;
  info->err->format_message(info, errors.message);
  errors.damaged = true;
}

/// Adobe's CMYK is stored inverted: 255 means no ink.
void to_rgb(const uint8_t* cmyk, int64_t pixels, bool inverted, uint8_t* rgb) {
  for (int64_t i = 0; i < pixels; ++i)
    for (int c = 0; c < 3; ++c) {
      const int ink = cmyk[4 * i + c], black = cmyk[4 * i + 3];
      rgb[3 * i + c] = static_cast<uint8_t>(inverted ? (ink * black + 127) / 255 : ((255 - ink) * (255 - black) + 127) / 255);
    }
}

enum class Outcome { decoded, damaged, too_large };

Outcome decode(std::string_view bytes, int64_t max_pixels, JpegImage& out, std::vector<uint8_t>& line, jpeg_decompress_struct& info,
               ErrorManager& errors) {
  if (setjmp(errors.jump)) return Outcome::damaged;
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&info, TRUE);
  out.image.width = info.image_width;
  out.image.height = info.image_height;
  if (out.image.width * out.image.height > max_pixels) return Outcome::too_large;
  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  out.colour = cmyk ? JpegColour::cmyk : info.jpeg_color_space == JCS_GRAYSCALE ? JpegColour::grey : JpegColour::rgb;
  info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  const auto width = static_cast<size_t>(out.image.width), height = static_cast<size_t>(out.image.height);
  out.image.pixels.resize(3 * width * height);
  line.resize(4 * width);
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    uint8_t* row = &out.image.pixels[3 * width * info.output_scanline];
    JSAMPROW target = cmyk ? line.data() : row;
    jpeg_read_scanlines(&info, &target, 1);
    if (cmyk) to_rgb(line.data(), out.image.width, info.saw_Adobe_marker, row);
  }
  jpeg_finish_decompress(&info);
  return errors.damaged ? Outcome::damaged : Outcome::decoded;
}

}  // namespace

JpegImage decode_jpeg(std::string_view bytes, const std::string& path, int64_t max_pixels) {
  require<InputError>(bytes.starts_with("\xFF\xD8"), path, ": is not a JPEG file", bytes.empty() ? ", it is empty" : "");
  JpegImage out;
  std::vector<uint8_t> line;
  jpeg_decompress_struct info{};
  ErrorManager errors{};
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = fail;
  errors.base.emit_message = note;
  const Outcome outcome = decode(bytes, max_pixels, out, line, info, errors);
  jpeg_destroy_decompress(&info);
  require<InputError>(outcome != Outcome::too_large, path, ": at most ", max_pixels, " pixels are read, the image has ", out.image.width, " x ",
                      out.image.height);
  require<InputError>(outcome == Outcome::decoded, path, ": the JPEG file is damaged (", static_cast<const char*>(errors.message), ")");
  return out;
}

}  // namespace sinkgrad
