// libarchive recognises format and compression by content. A build without it says so when an archive is first opened.
#include "datasets/archive.h"

#include "core/check.h"
#include "core/file.h"
#include "core/names.h"

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
    const std::string_view line = text ? std::string_view(text).substr(0, std::string_view(text).find('\n')) : "";
    return line.empty() ? "; it ends too early or was changed" : cat(" (", printable(line), ")");
  };
  // Not all that the library knows: some of its filters start programs.
  for (const auto support : {archive_read_support_format_tar, archive_read_support_format_zip, archive_read_support_filter_gzip,
                             archive_read_support_filter_bzip2, archive_read_support_filter_xz, archive_read_support_filter_zstd})
    support(file.get());
  require<IoError>(std::filesystem::exists(path), path.string(), ": does not exist");
  require_regular(path);
  require<InputError>(archive_read_open_filename(file.get(), path.c_str(), size_t{1} << 18) == ARCHIVE_OK, path.string(),
                      ": is no archive that can be read", reason());
  for (archive_entry* entry = nullptr;;) {
    const int status = archive_read_next_header(file.get(), &entry);
    if (status == ARCHIVE_EOF) return;
    require<InputError>(status == ARCHIVE_OK || status == ARCHIVE_WARN, path.string(), ": the archive is damaged", reason());
    const char* stored_name = archive_entry_pathname(entry);
    const std::string name = stored_name ? stored_name : "", place = cat(path.string(), ": ", printable(name));
    if (archive_entry_filetype(entry) != AE_IFREG || !wanted(name)) continue;
    std::string content;
    while (true) {
      char part[1 << 16];
      const auto got = archive_read_data(file.get(), part, sizeof part);
      require<InputError>(got >= 0, place, ": the archive is damaged", reason());
      if (got == 0) break;
      content.append(part, static_cast<size_t>(got));
      require<InputError>(content.size() <= max_bytes, place, ": at most ", max_bytes, " bytes are read, the file holds more");
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
