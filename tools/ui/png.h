// Small pictures inside a page: a matrix of colours as a PNG.
#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace sinkgrad {

/// A PNG of width x height pixels, four bytes each (red, green, blue, opacity), as a data: address.
std::string png_address(size_t width, size_t height, std::span<const uint8_t> pixels);

}  // namespace sinkgrad
