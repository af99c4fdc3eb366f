// Bytes are stored after 16 digits, their own fingerprint; tokens as safetensors with the key in the metadata.
#include "datasets/token_cache.h"

#include <cstdlib>

#include "core/file.h"
#include "core/safetensors.h"

namespace sinkgrad {
namespace {

constexpr uint64_t kLimit = uint64_t{16} << 30;
constexpr const char* kKey = "fingerprint";

std::filesystem::path folder_of(const std::string& folder, const std::filesystem::path& data) {
  if (!folder.empty()) return folder;
  if (const char* variable = std::getenv("SINKGRAD_CACHE"); variable && *variable) return variable;
  return std::filesystem::is_directory(data) ? data : data.parent_path();
}

/// Makes the folder and writes; an IoError then says how to move the cache.
void write_into(const std::filesystem::path& folder, const std::function<void()>& write) {
  try {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    require<IoError>(!error, folder.string(), ": creating the folder failed: ", error.message());
    write();
  } catch (const IoError& error) {
    throw IoError(cat(error.what(), " (a cache; the option `cache` or SINKGRAD_CACHE names another folder)"));
  }
}

TokenRows rows_from(const SafetensorsFile& file, const std::string& key, int64_t vocabulary) {
  const auto found = file.metadata.find(kKey);
  require<InputError>(found != file.metadata.end() && found->second == key, "another fingerprint");
  TokenRows rows;
  const auto tokens = file.tensors.at("tokens").span<int32_t>();
  int64_t begin = 0;
  for (const int64_t end : file.tensors.at("ends").span<int64_t>()) {
    require<InputError>(begin <= end && end <= static_cast<int64_t>(tokens.size()), "ends out of order");
    rows.push_back(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    begin = end;
  }
  for (const int32_t token : tokens) require<InputError>(token >= 0 && token < vocabulary, "token out of range");
  return rows;
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

TokenCache::TokenCache(const std::string& folder, const std::filesystem::path& data) : folder_(folder_of(folder, data)) {}

std::filesystem::path TokenCache::path(const std::string& name, const Fingerprint& key, const char* extension) const {
  return folder_ / cat(name, "-", key.text(), extension);
}

std::string TokenCache::bytes(const std::string& name, const Fingerprint& key, const std::function<std::string()>& make,
                              const std::function<void(const std::string&)>& usable) const {
  const std::filesystem::path file = path(name, key, "");
  try {
    std::string stored = read_file(file, kLimit);
    require<InputError>(stored.size() >= 16, "no fingerprint");
    const std::string check = stored.substr(0, 16);
    stored.erase(0, 16);
    require<InputError>(check == Fingerprint().add(stored).text(), "damaged");
    usable(stored);
    return stored;
  } catch (const Error&) {  // absent or damaged: made anew
  }
  std::string made = make();
  usable(made);
  write_into(folder_, [&] { write_file(file, Fingerprint().add(made).text() + made); });
  return made;
}

TokenRows TokenCache::tokens(const std::string& name, const Fingerprint& key, int64_t vocabulary, const std::function<TokenRows()>& make) const {
  const std::filesystem::path file = path(name, key, ".safetensors");
  try {
    return rows_from(read_safetensors(file), key.text(), vocabulary);
  } catch (const Error&) {  // absent or damaged: made anew
  } catch (const std::out_of_range&) {
  }
  TokenRows made = make();
  const auto view = [](const auto& values, DType dtype) {
    return View{const_cast<void*>(static_cast<const void*>(values.data())), {static_cast<int64_t>(values.size())}, dtype};
  };
  write_into(folder_, [&] {
    write_safetensors(file, std::vector<NamedView>{{"tokens", view(made.tokens(), DType::i32)}, {"ends", view(made.ends(), DType::i64)}},
                      {{kKey, key.text()}});
  });
  return made;
}

}  // namespace sinkgrad
