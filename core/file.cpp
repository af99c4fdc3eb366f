// Temporary files are locked (flock) while they are written: a temporary file that nobody locks was left behind by a process that died.
#include "core/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "core/check.h"

namespace sinkgrad {
namespace {

constexpr const char* kTemporaryPrefix = ".sinkgrad-";
constexpr const char* kTemporarySuffix = ".tmp";

[[noreturn]] void fail(const std::filesystem::path& path, const char* doing, int error) {
  throw IoError(cat(path.string(), ": ", doing, " failed: ", std::generic_category().message(error)));
}

struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

void require_regular(const std::filesystem::path& path, mode_t mode) {
  require<IoError>(S_ISREG(mode), path.string(), ": must be a regular file, it is a ", S_ISDIR(mode) ? "folder" : S_ISFIFO(mode) ? "pipe" : "device");
}

/// Whether a pipe has bytes or has lost its writers, within so many milliseconds; -1: however long that takes.
bool wait_for_pipe(int descriptor, int milliseconds) {
  pollfd event{descriptor, POLLIN, 0};
  return ::poll(&event, 1, milliseconds) > 0;
}

std::filesystem::path directory_of(const std::filesystem::path& path) { return path.has_parent_path() ? path.parent_path() : "."; }

/// Two processes may do this at once and files may vanish meanwhile: errors are of no interest.
void remove_stale_temporaries(const std::filesystem::path& directory) {
  std::error_code ignored;
  for (std::filesystem::directory_iterator it(directory, ignored), end; it != end; it.increment(ignored)) {
    const std::string name = it->path().filename();
    if (!name.starts_with(kTemporaryPrefix) || !name.ends_with(kTemporarySuffix)) continue;
    const Descriptor file{::open(it->path().c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
    if (file.value >= 0 && ::flock(file.value, LOCK_EX | LOCK_NB) == 0) ::unlink(it->path().c_str());
  }
}

}  // namespace

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};  // otherwise opening a pipe waits for its writer
  if (file.value < 0) fail(path, "opening", errno);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) fail(path, "reading", errno);
  // What nobody has opened for writing yet reads as an empty file, what nobody has written to yet as EAGAIN.
  bool silent = false;
  if (S_ISFIFO(status.st_mode))
    silent = !wait_for_pipe(file.value, 1000);
  else
    require_regular(path, status.st_mode);
  // The size is only a hint: files of /proc have none, and a file may grow meanwhile. One byte more than expected lets the last read see the end.
  const uint64_t hint = status.st_size > 0 ? static_cast<uint64_t>(status.st_size) : 65536;
  require<InputError>(status.st_size <= 0 || hint <= max_bytes, path.string(), ": at most ", max_bytes, " bytes are read, the file has ", hint);
  std::string bytes;
  try {
    bytes.resize(hint + 1);
  } catch (const std::bad_alloc&) {
    throw OutOfMemoryError(cat(path.string(), ": reading needs ", hint, " bytes of memory"));
  }
  for (size_t used = 0;;) {
    if (used == bytes.size()) bytes.resize(used * 2);
    const ssize_t n = ::read(file.value, bytes.data() + used, bytes.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      silent = false;
      wait_for_pipe(file.value, -1);
      continue;
    }
    if (n < 0) fail(path, "reading", errno);
    require<IoError>(n > 0 || !silent, path.string(), ": is a pipe, and nobody has opened it for writing");
    used += static_cast<size_t>(n);
    require<InputError>(used <= max_bytes, path.string(), ": at most ", max_bytes, " bytes are read, the file has more");
    if (n == 0) {
      bytes.resize(used);
      return bytes;
    }
  }
}

void require_regular(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) require_regular(path, status.st_mode);
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)) {
  struct stat status {};
  // Renaming over /dev/null or a pipe would replace the device itself.
  if (::stat(path_.c_str(), &status) == 0) require<IoError>(S_ISREG(status.st_mode), path_.string(), ": writing needs a regular file or a new name");
  const std::filesystem::path directory = directory_of(path_);
  remove_stale_temporaries(directory);
  static std::atomic<uint64_t> counter{0};
  for (;;) {
    temporary_ = directory / cat(kTemporaryPrefix, ::getpid(), '-', counter++, kTemporarySuffix);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno == EEXIST) continue;
    check(descriptor_ >= 0, "creating a temporary file beside it");
    // Another process may take it for stale between open and flock: then it is gone, and a new one is made.
    // On a file system without locks nobody takes it for stale.
    const bool taken = ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!taken && ::fstat(descriptor_, &status) == 0 && status.st_nlink > 0) return;
    ::close(std::exchange(descriptor_, -1));
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(descriptor_);
}

void AtomicFile::check(bool ok, const char* doing) const {
  if (!ok) fail(path_, doing, errno);
}

void AtomicFile::write(const void* data, size_t bytes) {
  for (auto p = static_cast<const char*>(data); bytes > 0;) {
    const ssize_t n = ::write(descriptor_, p, bytes);
    if (n < 0 && errno == EINTR) continue;
    check(n >= 0, "writing");
    p += n;
    bytes -= static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
}

void AtomicFile::commit() {
  check(::fsync(descriptor_) == 0, "fsync");
  check(::rename(temporary_.c_str(), path_.c_str()) == 0, "renaming the temporary file");
  check(::close(std::exchange(descriptor_, -1)) == 0, "closing");
  const Descriptor directory{::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  // Some file systems cannot fsync a directory and say EINVAL.
  check(directory.value >= 0 && (::fsync(directory.value) == 0 || errno == EINVAL), "fsync of the directory");
}

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

}  // namespace sinkgrad
