// Results that take long to make, kept in files named after a fingerprint of everything they depend on. A file that is damaged or belongs to
// another fingerprint is made again; files appear whole or not at all.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "datasets/tokens.h"

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

class TokenCache {
 public:
  /// In `folder`; an empty one stands for $SINKGRAD_CACHE, otherwise for the folder of the data (of the archive, where `data` is one).
  TokenCache(const std::string& folder, const std::filesystem::path& data);
  /// Bytes that carry their own check, such as a sentencepiece model: `usable` tries them and throws InputError when they are no good.
  std::string bytes(const std::string& name, const Fingerprint& key, const std::function<std::string()>& make,
                    const std::function<void(const std::string&)>& usable) const;
  /// Token sequences with tokens in 0 .. vocabulary-1.
  TokenRows tokens(const std::string& name, const Fingerprint& key, int64_t vocabulary, const std::function<TokenRows()>& make) const;

 private:
  std::filesystem::path path(const std::string& name, const Fingerprint& key, const char* extension) const;
  std::filesystem::path folder_;
};

}  // namespace sinkgrad
