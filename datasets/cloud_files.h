// Between the readers of point cloud files: a collection that is written to and read from its cache.
#pragma once
#include "datasets/folders.h"
#include "datasets/point_clouds.h"

namespace sinkgrad {

/// The collection from the cache `path` made for `key`, or else from `build`, which writes the clouds and fills in the rest.
CloudCollection cached_clouds(const std::filesystem::path& path, const std::string& key, const std::function<CloudCollection(AtomicFile&)>& build);

/// The classes of ModelNet40 in order of their labels.
const std::vector<std::string>& modelnet40_classes();

}  // namespace sinkgrad
