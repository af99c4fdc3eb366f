// Where the CUDA backend comes from: a library of its own beside this one, loaded when a GPU is first asked for. So programs start, and the
// CPU works, on machines without CUDA's libraries.
#include "core/device.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "core/build.h"
#include "core/check.h"
#include "core/names.h"

namespace sinkgrad {
namespace {

std::atomic<Backend& (*)(int)> g_open_cuda = nullptr;  // one thread may load the backend while another asks whether there is one

std::filesystem::path cuda_library() {
  Dl_info here;
  if (!dladdr(reinterpret_cast<const void*>(&Device::built_with_cuda), &here) || !here.dli_fname) return {};
  return std::filesystem::path(here.dli_fname).parent_path() / "libsinkgrad_cuda.so";
}

/// What can be known of a library before any of its code runs.
class LibraryFile {
 public:
  explicit LibraryFile(const std::filesystem::path& path) : file_(path, std::ios::binary) {
    std::error_code error;
    const uint64_t size = std::filesystem::file_size(path, error);
    Elf64_Ehdr header{};
    if (error || !read(0, &header, sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return;
    sections_.resize(header.e_shnum);
    const uint64_t bytes = sections_.size() * sizeof(Elf64_Shdr);
    whole_ = header.e_shentsize == sizeof(Elf64_Shdr) && header.e_shoff + bytes <= size && header.e_shstrndx < sections_.size() &&
             read(header.e_shoff, sections_.data(), bytes);
    if (whole_) names_ = sections_[header.e_shstrndx];
  }

  /// Whether it is as long as its header says: a cut one would end the program by a signal while it is loaded.
  bool whole() const { return whole_; }

  /// The build that it is of; empty when it does not say.
  std::string build() {
    constexpr std::string_view kName = SINKGRAD_BUILD_SECTION;
    for (const Elf64_Shdr& section : sections_) {
      char name[kName.size() + 1] = {}, text[64] = {};
      if (!read(names_.sh_offset + section.sh_name, name, sizeof name) ||
          std::string_view(name, sizeof name) != std::string_view(kName.data(), sizeof name))
        continue;
      if (read(section.sh_offset, text, std::min(section.sh_size, sizeof text - 1))) return text;
    }
    return "";
  }

 private:
  bool read(uint64_t at, void* to, size_t bytes) {
    file_.clear();
    return file_.seekg(static_cast<std::streamoff>(at)) && file_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
  }

  std::ifstream file_;
  std::vector<Elf64_Shdr> sections_;
  Elf64_Shdr names_{};
  bool whole_ = false;
};

void load_cuda_backend() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (g_open_cuda) return;
  require<DeviceError>(Device::built_with_cuda(), "cuda: this sinkgrad was built without CUDA, there is no ", cuda_library().string());
  LibraryFile file(cuda_library());
  require<DeviceError>(file.whole(), "cuda: ", cuda_library().string(), " is not a whole library");
  const std::string build = file.build();
  require<DeviceError>(build == SINKGRAD_BUILD, "cuda: ", cuda_library().string(),
                       " must be of the same build as libsinkgrad, " SINKGRAD_BUILD ", got ",
                       build.empty() ? "one that does not say" : printable(build));
  // The library registers its backend and its kernels while it is loaded.
  if (!dlopen(cuda_library().c_str(), RTLD_NOW | RTLD_LOCAL)) throw DeviceError(cat("cuda: a library is missing or does not fit: ", dlerror()));
  require<DeviceError>(g_open_cuda.load() != nullptr, "cuda: ", cuda_library().string(), " holds no CUDA backend");
}

}  // namespace

bool Device::register_cuda_backend(Backend& (*open)(int)) {
  g_open_cuda = open;
  return true;
}

bool Device::built_with_cuda() {
  std::error_code error;
  return g_open_cuda || std::filesystem::exists(cuda_library(), error);
}

Device Device::cuda(int index) {
  load_cuda_backend();
  return {DeviceKind::cuda, g_open_cuda.load()(index)};
}

}  // namespace sinkgrad
