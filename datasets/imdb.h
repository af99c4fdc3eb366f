// The Large Movie Review Dataset (Maas et al. 2011) in its original layout: aclImdb/{train,test}/{neg,pos}/ID_RATING.txt, unpacked or as the
// archive aclImdb_v1.tar.gz. Of each file the first line is the review.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "datasets/registry.h"

namespace sinkgrad {

struct Review {
  bool test = false, positive = false;
  int64_t id = 0;
  std::string text;
};

/// All labelled reviews: those of train first, negative before positive, by id; so the same from a folder and from an archive. `path` is the
/// folder aclImdb, one that holds it, or an archive or a folder that holds one. IoError when nothing is there, with the layout that is
/// expected; InputError naming a file whose name, rating or text is malformed.
std::vector<Review> read_reviews(const std::filesystem::path& path);

/// Options of data set "imdb", see datasets/registry.h.
DataSplits make_imdb(const nlohmann::json& options);
DataDescription imdb_description();

}  // namespace sinkgrad
