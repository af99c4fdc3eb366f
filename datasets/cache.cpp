// A file that another program changed or cut is simply made again.
#include "datasets/cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "core/check.h"
#include "core/rng.h"

namespace sinkgrad {
namespace {

constexpr std::string_view kMagic = "sinkgrad cache 1";
constexpr uint64_t kDataBegin = 64, kLengths = 16;
constexpr const char* kElsewhere = "; the data option 'cache' or the variable SINKGRAD_CACHE names another folder for cache files";

CacheListener& listener() {
  static CacheListener current;
  return current;
}

/// The whole file in memory, or null.
std::shared_ptr<const void> map(const std::filesystem::path& path, uint64_t& bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return nullptr;
  struct stat status {};
  void* memory = MAP_FAILED;
  if (::fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    bytes = static_cast<uint64_t>(status.st_size);
    memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
  }
  ::close(file);
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [bytes](const void* p) { ::munmap(const_cast<void*>(p), bytes); }};
}

/// The folder of an archive; otherwise the data's own.
std::filesystem::path folder_of(const std::filesystem::path& data) {
  if (std::filesystem::is_regular_file(data)) return data.has_parent_path() ? data.parent_path() : ".";
  return data;
}

}  // namespace

Fingerprint& Fingerprint::add(std::string_view part) {
  const auto mix = [&](unsigned char c) { hash_ = (hash_ ^ c) * 0x100000001b3; };
  for (const char c : part) mix(static_cast<unsigned char>(c));
  for (uint64_t length = part.size(), i = 0; i < 8; ++i) mix(static_cast<unsigned char>(length >> (8 * i)));
  return *this;
}

std::string Fingerprint::text() const {
  std::string digits(16, '0');
  for (size_t i = 0; i < 16; ++i) digits[i] = "0123456789abcdef"[hash_ >> (60 - 4 * i) & 15];
  return digits;
}

std::shared_ptr<const CacheFile> CacheFile::open(const std::filesystem::path& path, const std::string& key, const Usable& usable) {
  uint64_t size = 0;
  std::shared_ptr<const void> mapping = map(path, size);
  if (!mapping || size < kDataBegin + kLengths) return nullptr;
  const char* begin = static_cast<const char*>(mapping.get());
  uint64_t lengths[2];  // data, trailer
  std::memcpy(lengths, begin + size - kLengths, kLengths);
  const uint64_t room = size - kDataBegin - kLengths;
  if (std::string_view(begin, kMagic.size()) != kMagic || lengths[0] > room || lengths[1] != room - lengths[0]) return nullptr;
  const std::string_view trailer(begin + kDataBegin + lengths[0], lengths[1]);
  nlohmann::json json = nlohmann::json::parse(trailer, nullptr, false);
  if (!json.is_object() || json.value("key", "") != key || !json.contains("meta")) return nullptr;
  std::shared_ptr<CacheFile> cache(new CacheFile);
  cache->meta_ = std::move(json["meta"]);
  cache->bytes_ = {begin + kDataBegin, lengths[0]};
  cache->mapping_ = std::move(mapping);
  return usable && !usable(*cache) ? nullptr : cache;
}

std::shared_ptr<const CacheFile> CacheFile::open_or_build(const std::filesystem::path& path, const std::string& key, const Build& build,
                                                          const Usable& usable) {
  if (auto found = open(path, key, usable)) return found;
  try {
    const std::shared_ptr<void> told = listener() ? listener()(path) : nullptr;
    AtomicFile file(path);
    std::string head(kMagic);
    head.resize(kDataBegin, '\0');
    file.write(head);
    const nlohmann::json meta = build(file);
    const std::string trailer = nlohmann::json{{"key", key}, {"meta", meta}}.dump();
    const uint64_t lengths[2] = {file.written() - kDataBegin, trailer.size()};
    file.write(trailer);
    file.write(lengths, kLengths);
    file.commit();
  } catch (const IoError& error) {
    throw IoError(cat(error.what(), kElsewhere));
  }
  auto made = open(path, key, usable);
  require<IoError>(made != nullptr, path.string(), ": the cache file just written cannot be read back");
  return made;
}

void set_cache_listener(CacheListener replacement) { listener() = std::move(replacement); }

std::string cache_key(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& files, const nlohmann::json& options) {
  std::string key = options.dump();
  for (const auto& file : files) {
    struct stat status {};
    require<IoError>(::stat(file.c_str(), &status) == 0, file.string(), ": reading its size failed: ", std::strerror(errno));
    key += cat('\n', file.lexically_relative(folder).string(), ' ', status.st_size, ' ', status.st_mtim.tv_sec, '.', status.st_mtim.tv_nsec);
  }
  return key;
}

std::filesystem::path cache_path(const std::string& cache_folder, const std::filesystem::path& folder, const std::string& name) {
  const char* variable = std::getenv("SINKGRAD_CACHE");
  const std::filesystem::path chosen = !cache_folder.empty() ? cache_folder : variable ? variable : "";
  if (chosen.empty()) return folder_of(folder) / ("sinkgrad-" + name + ".cache");
  std::error_code error;
  std::filesystem::create_directories(chosen, error);
  require<IoError>(!error, chosen.string(), ": creating the folder for cache files failed: ", error.message(), kElsewhere);
  return chosen / cat(name, '-', std::hex, stream_id(std::filesystem::absolute(folder).lexically_normal().string()), ".cache");
}

}  // namespace sinkgrad
