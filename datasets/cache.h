// Cache files: what was decoded or sampled once, kept on disk and mapped into memory, and made again when the sources or options change.
// Layout: magic, data from byte 64 on, a JSON trailer {key, meta}, the lengths of data and trailer as two u64.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"

namespace sinkgrad {

class CacheFile {
 public:
  /// Writes the data and returns what else there is to say about it.
  using Build = std::function<nlohmann::json(AtomicFile&)>;

  /// The cache file `path` if it is whole and was made for the same key, otherwise a new one, which takes its place atomically.
  /// IoError, naming the option that moves it, when it cannot be written.
  static std::shared_ptr<const CacheFile> open_or_build(const std::filesystem::path& path, const std::string& key, const Build& build);

  const nlohmann::json& meta() const { return meta_; }
  template <class T>
  std::span<const T> data() const {
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  CacheFile() = default;
  static std::shared_ptr<const CacheFile> open(const std::filesystem::path& path, const std::string& key);
  nlohmann::json meta_;
  std::span<const char> bytes_;
  std::shared_ptr<const void> mapping_;
};

/// What a cache was made from, for its key: options, and name, size and time of change of each file.
std::string cache_key(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& files, const nlohmann::json& options);

/// Where the cache of data set `name` in `folder` lies: beside the data, or, when `cache_folder` or else the environment variable
/// SINKGRAD_CACHE names one, in that folder, under a name that tells data folders apart. Creates the folder.
std::filesystem::path cache_path(const std::string& cache_folder, const std::filesystem::path& folder, const std::string& name);

}  // namespace sinkgrad
