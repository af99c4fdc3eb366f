// libarchive recognises format and compression by content. A build without it says so when an archive is first opened.
#include "datasets/archive.h"

#include "core/check.h"

#ifdef SINKGRAD_HAS_ARCHIVE
#include <archive.h>
#include <archive_entry.h>

#include <memory>
#endif

namespace sinkgrad {

#ifdef SINKGRAD_HAS_ARCHIVE

void read_archive(const std::filesystem::path& path, const std::function<bool(const std::string&)>& wanted,
                  const std::function<void(const std::string&, std::string)>& use, uint64_t max_bytes) {
  const std::unique_ptr<archive, int (*)(archive*)> file(archive_read_new(), archive_read_free);
  require<OutOfMemoryError>(file != nullptr, path.string(), ": opening the archive needs more memory than there is");
  const auto reason = [&] {
    const char* text = archive_error_string(file.get());  // of some formats that end too early there is none
    return text && *text ? cat(" (", text, ")") : "; it ends too early or was changed";
  };
  archive_read_support_format_all(file.get());
  archive_read_support_filter_all(file.get());
  require<IoError>(std::filesystem::exists(path), path.string(), ": does not exist");
  require<InputError>(archive_read_open_filename(file.get(), path.c_str(), size_t{1} << 18) == ARCHIVE_OK, path.string(),
                      ": is no archive that can be read", reason());
  for (archive_entry* entry = nullptr;;) {
    const int status = archive_read_next_header(file.get(), &entry);
    if (status == ARCHIVE_EOF) return;
    require<InputError>(status == ARCHIVE_OK || status == ARCHIVE_WARN, path.string(), ": the archive is damaged", reason());
    const char* stored_name = archive_entry_pathname(entry);
    const std::string name = stored_name ? stored_name : "";
    if (archive_entry_filetype(entry) != AE_IFREG || !wanted(name)) continue;
    std::string content;
    while (true) {
      char part[1 << 16];
      const auto got = archive_read_data(file.get(), part, sizeof part);
      require<InputError>(got >= 0, path.string(), ": ", name, ": the archive is damaged", reason());
      if (got == 0) break;
      content.append(part, static_cast<size_t>(got));
      require<InputError>(content.size() <= max_bytes, path.string(), ": ", name, ": at most ", max_bytes, " bytes are read, the file holds more");
    }
    use(name, std::move(content));
  }
}

#else

void read_archive(const std::filesystem::path& path, const std::function<bool(const std::string&)>&,
                  const std::function<void(const std::string&, std::string)>&, uint64_t) {
  throw Error(
      cat(path.string(), ": this program was built without libarchive (Debian package libarchive-dev); unpack the archive and name the folder"));
}

#endif

}  // namespace sinkgrad
