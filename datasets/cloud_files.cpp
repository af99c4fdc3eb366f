// A collection without its clouds is the JSON in the trailer of the cache.
#include "datasets/cloud_files.h"

namespace sinkgrad {
CloudCollection cached_clouds(const std::filesystem::path& path, const std::string& key, const std::function<CloudCollection(AtomicFile&)>& build) {
  CloudCollection clouds;
  clouds.cache = CacheFile::open_or_build(path, key, [&](AtomicFile& file) {
    const CloudCollection made = build(file);
    return nlohmann::json{{"points", made.points}, {"classes", made.class_names}, {"labels", made.labels},
                          {"train", made.train},   {"test", made.test},           {"notes", made.notes}};
  });
  const nlohmann::json& meta = clouds.cache->meta();
  clouds.points = meta.at("points");
  clouds.class_names = meta.at("classes");
  clouds.labels = meta.at("labels").get<std::vector<int32_t>>();
  clouds.train = meta.at("train").get<std::vector<uint32_t>>();
  clouds.test = meta.at("test").get<std::vector<uint32_t>>();
  clouds.notes = meta.at("notes");
  return clouds;
}

const std::vector<std::string>& modelnet40_classes() {
  static const std::vector<std::string> names = {"airplane",  "bathtub", "bed",      "bench",   "bookshelf",  "bottle", "bowl",     "car",
                                                 "chair",     "cone",    "cup",      "curtain", "desk",       "door",   "dresser",  "flower_pot",
                                                 "glass_box", "guitar",  "keyboard", "lamp",    "laptop",     "mantel", "monitor",  "night_stand",
                                                 "person",    "piano",   "plant",    "radio",   "range_hood", "sink",   "sofa",     "stairs",
                                                 "stool",     "table",   "tent",     "toilet",  "tv_stand",   "vase",   "wardrobe", "xbox"};
  return names;
}

}  // namespace sinkgrad
