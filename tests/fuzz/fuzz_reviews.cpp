// The archive of the IMDb reviews: tar, compressed or not, and zip.
#include <archive.h>
#include <archive_entry.h>

#include "datasets/imdb.h"
#include "fuzz/fuzz.h"

namespace sinkgrad::fuzz {
namespace {

std::string archive_of_reviews(int (*format)(archive*), int (*filter)(archive*)) {
  std::string bytes(1 << 16, '\0');
  size_t used = 0;
  archive* a = archive_write_new();
  format(a);
  filter(a);
  archive_write_set_bytes_in_last_block(a, 1);
  archive_write_open_memory(a, bytes.data(), bytes.size(), &used);
  for (const char* name : {"aclImdb/train/neg/0_3.txt", "aclImdb/train/pos/1_9.txt", "aclImdb/test/neg/2_1.txt", "aclImdb/test/pos/3_10.txt"}) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name);
    archive_entry_set_size(entry, 5);
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_write_header(a, entry);
    archive_write_data(a, "good\n", 5);
    archive_entry_free(entry);
  }
  archive_write_close(a);
  archive_write_free(a);
  bytes.resize(used);
  return bytes;
}

}  // namespace

std::vector<std::string> seeds() {
  return {archive_of_reviews(archive_write_set_format_pax_restricted, archive_write_add_filter_none),
          archive_of_reviews(archive_write_set_format_pax, archive_write_add_filter_gzip),
          archive_of_reviews(archive_write_set_format_zip, archive_write_add_filter_none)};
}

void feed(std::string_view input) {
  const MemoryFile file(input);
  read_reviews(file.path());
}

}  // namespace sinkgrad::fuzz
