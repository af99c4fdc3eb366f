// Cache files: what takes long to decode, sample, learn or cut, kept on disk and mapped into memory, and made again when the sources or options
// change. Layout: magic, data from byte 64 on, a JSON trailer {key, meta}, the lengths of data and trailer as two u64.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"

namespace sinkgrad {

/// 64 bits (FNV-1a) of what was added, parts kept apart.
class Fingerprint {
 public:
  Fingerprint& add(std::string_view part);
  Fingerprint& add(int64_t number) { return add(std::to_string(number)); }
  /// 16 hexadecimal digits.
  std::string text() const;

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

class CacheFile {
 public:
  /// Writes the data and returns what else there is to say about it.
  using Build = std::function<nlohmann::json(AtomicFile&)>;

  /// What is checked of a file beyond its lengths and key, where that costs little.
  using Usable = std::function<bool(const CacheFile&)>;

  /// The cache file `path` if it is whole and was made for the same key, otherwise a new one, which takes its place atomically.
  /// IoError, naming the option that moves it, when it cannot be written.
  static std::shared_ptr<const CacheFile> open_or_build(const std::filesystem::path& path, const std::string& key, const Build& build,
                                                        const Usable& usable = {});

  const nlohmann::json& meta() const { return meta_; }
  template <class T>
  std::span<const T> data() const {
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

 private:
  CacheFile() = default;
  static std::shared_ptr<const CacheFile> open(const std::filesystem::path& path, const std::string& key, const Usable& usable);
  nlohmann::json meta_;
  std::span<const char> bytes_;
  std::shared_ptr<const void> mapping_;
};

/// Who is told when a cache file is about to be made, with its path; what it returns is destroyed when the file is there or could not be made.
using CacheListener = std::function<std::shared_ptr<void>(const std::filesystem::path&)>;
/// Replaces the listener, of which there is none at first; not while data is opened on other threads.
void set_cache_listener(CacheListener listener);

/// What a cache was made from, for its key: options, and name, size and time of change of each file.
std::string cache_key(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& files, const nlohmann::json& options);

/// Where the cache `name` of the data in `folder`, which may also be an archive, lies: beside the data, or, when `cache_folder` or else the
/// environment variable SINKGRAD_CACHE names one, in that folder, under a name that tells data folders apart. Creates the folder.
std::filesystem::path cache_path(const std::string& cache_folder, const std::filesystem::path& folder, const std::string& name);

}  // namespace sinkgrad
