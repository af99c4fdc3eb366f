// What `sinkgrad data` tells of a data set: its files, where they come from, how they must lie, and how to check them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sinkgrad {

/// A file as its publisher offers it.
struct PublishedFile {
  std::string name;            ///< below the data folder; ../NAME for an archive that unpacks into it
  std::string url;             ///< empty: it cannot be fetched without an account or by a plain download
  std::string hash, checksum;  ///< md5 or sha256, and its value in hexadecimal; empty when none is known
  int64_t bytes = 0;           ///< 0 when not known
};

struct DataDescription {
  std::string summary;                    ///< what it is, one sentence
  std::string layout;                     ///< how the files must lie in the folder; several lines
  std::string origin = "";                ///< where they come from, terms of use, how to unpack; several lines
  std::vector<PublishedFile> files = {};  ///< none for a data set that is made up
};

}  // namespace sinkgrad
