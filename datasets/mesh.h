// Triangle meshes in the OFF format, with the header variants that ModelNet and LabeledDB files have, and points drawn on their surface.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/rng.h"

namespace sinkgrad {

struct Mesh {
  std::vector<std::array<double, 3>> vertices;
  std::vector<std::array<uint32_t, 3>> triangles;  ///< polygons are cut into fans
  bool glued_header = false;                       ///< the counts followed OFF without a space ("OFF490 518 0"), as in many ModelNet40 files
};

/// Whether a file whose counts are glued to the word OFF is read or refused.
enum class OffHeader : uint8_t { any, strict };

/// Parses an OFF file: the word OFF (or COFF, NOFF, STOFF, CNOFF ...; it may be absent), counts of vertices, faces and, optionally, edges on
/// the same or the next line, a line for each vertex, a line for each face. Blank lines, # comments, CRLF, a byte-order mark, colours and
/// normals are passed over. InputError "path:line: ..." for binary and four-dimensional files and anything malformed.
Mesh parse_off(std::string_view bytes, const std::string& path, OffHeader header = OffHeader::any);

/// Fills xyz with points (x, y, z each) drawn uniformly by area: a triangle ABC in proportion to its area, then s A + (t - s) B + (1 - t) C
/// from two uniform numbers s <= t. InputError (beginning with `path`) when the mesh has no area.
void sample_surface(const Mesh& mesh, RandomStream random, std::span<float> xyz, const std::string& path);

}  // namespace sinkgrad
