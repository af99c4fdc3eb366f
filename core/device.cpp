// Where the CUDA backend comes from: a library of its own beside this one, loaded when a GPU is first asked for. So programs start, and the
// CPU works, on machines without CUDA's libraries.
#include "core/device.h"

#include <dlfcn.h>
#include <elf.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "core/check.h"

namespace sinkgrad {
namespace {

std::atomic<Backend& (*)(int)> g_open_cuda = nullptr;  // one thread may load the backend while another asks whether there is one

std::filesystem::path cuda_library() {
  Dl_info here;
  if (!dladdr(reinterpret_cast<const void*>(&Device::built_with_cuda), &here) || !here.dli_fname) return {};
  return std::filesystem::path(here.dli_fname).parent_path() / "libsinkgrad_cuda.so";
}

/// Whether an ELF file is as long as its header says: a cut one would end the program by a signal while it is loaded.
bool is_whole(const std::filesystem::path& path) {
  Elf64_Ehdr header{};
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  return !error && header.e_shoff + uint64_t{header.e_shnum} * header.e_shentsize <= size;
}

void load_cuda_backend() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (g_open_cuda) return;
  require<DeviceError>(Device::built_with_cuda(), "cuda: this sinkgrad was built without CUDA, there is no ", cuda_library().string());
  require<DeviceError>(is_whole(cuda_library()), "cuda: ", cuda_library().string(), " is not a whole library");
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
