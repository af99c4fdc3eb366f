// The library's own error printing is switched off; the innermost entry of its error stack joins our message.
#include "datasets/hdf5.h"

#include <hdf5.h>

#include <algorithm>
#include <mutex>

#include "core/check.h"
#include "core/file.h"

namespace sinkgrad {
namespace {

std::mutex g_mutex;

std::string reason() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* entry, void* out) {
        if (n == 0 && entry->desc) *static_cast<std::string*>(out) = entry->desc;
        return herr_t{0};
      },
      &text);
  return text.empty() ? "no reason given" : text;
}

/// An identifier of the library, released at the end.
struct Handle {
  hid_t id;
  explicit Handle(hid_t i) : id(i) {}
  ~Handle() {
    if (id >= 0) H5Idec_ref(id);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

void require_done(bool ok, const std::filesystem::path& path, const char* doing, const std::string& what) {
  if (!ok) throw InputError(cat(path.string(), ": ", doing, what.empty() ? "" : " '" + what + "'", " failed: ", reason()));
}

}  // namespace

Hdf5File::Hdf5File(std::filesystem::path path) : path_(std::move(path)), file_(-1) {
  const std::lock_guard lock(g_mutex);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  std::error_code error;
  require<IoError>(std::filesystem::exists(path_, error), path_.string(), ": there is no such file");
  require_regular(path_);
  require<InputError>(H5Fis_hdf5(path_.c_str()) > 0, path_.string(), ": is not an HDF5 file");
  file_ = H5Fopen(path_.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  require_done(file_ >= 0, path_, "opening", "");
}

Hdf5File::~Hdf5File() {
  const std::lock_guard lock(g_mutex);
  if (file_ >= 0) H5Fclose(file_);
}

bool Hdf5File::has(const std::string& name) const {
  const std::lock_guard lock(g_mutex);
  return H5Lexists(file_, name.c_str(), H5P_DEFAULT) > 0;
}

Shape Hdf5File::shape(const std::string& name) const {
  require<InputError>(has(name), path_.string(), ": has no array '", name, "'");
  const std::lock_guard lock(g_mutex);
  const Handle array(H5Dopen2(file_, name.c_str(), H5P_DEFAULT));
  require_done(array.id >= 0, path_, "opening", name);
  const Handle space(H5Dget_space(array.id));
  const int rank = H5Sget_simple_extent_ndims(space.id);
  require<InputError>(rank >= 1 && rank <= Shape::kMaxRank, path_.string(), ": '", name, "' must have 1 to ", Shape::kMaxRank, " dimensions, got ",
                      rank);
  hsize_t dims[Shape::kMaxRank];
  H5Sget_simple_extent_dims(space.id, dims, nullptr);
  Shape shape;
  std::error_code error;
  // Deflate shrinks 1032 times at most. A file that claims more has no data for it, and must not fill memory and disk.
  uint64_t room = 1032 * std::filesystem::file_size(path_, error);
  require<IoError>(!error, path_.string(), ": reading its size failed: ", error.message());
  for (int i = 0; i < rank; ++i) {
    require<InputError>(dims[i] <= INT32_MAX, path_.string(), ": dimension ", i, " of '", name, "' must be below 2^31, got ", dims[i]);
    require<InputError>(dims[i] <= room, path_.string(), ": '", name, "' has more elements than a file of this size can hold, dimension ", i, " is ",
                        dims[i]);
    room /= std::max<hsize_t>(dims[i], 1);
    shape.push_back(static_cast<int64_t>(dims[i]));
  }
  return shape;
}

void Hdf5File::read(const std::string& name, int64_t begin, int64_t end, bool integers, void* values) const {
  const Shape all = shape(name);
  require(0 <= begin && begin <= end && end <= all[0], "hdf5: rows ", begin, "..", end, " must lie in ", all);
  const std::lock_guard lock(g_mutex);
  const Handle array(H5Dopen2(file_, name.c_str(), H5P_DEFAULT));
  require_done(array.id >= 0, path_, "opening", name);
  const Handle type(H5Dget_type(array.id));
  const H5T_class_t kind = H5Tget_class(type.id);
  require<InputError>(kind == H5T_INTEGER || (!integers && kind == H5T_FLOAT), path_.string(), ": '", name, "' must hold ",
                      integers ? "integers" : "numbers");
  hsize_t start[Shape::kMaxRank] = {}, count[Shape::kMaxRank] = {};
  for (int i = 0; i < all.rank(); ++i) count[i] = static_cast<hsize_t>(all[i]);
  start[0] = static_cast<hsize_t>(begin);
  count[0] = static_cast<hsize_t>(end - begin);
  const Handle file_space(H5Dget_space(array.id)), memory_space(H5Screate_simple(all.rank(), count, nullptr));
  const bool done = H5Sselect_hyperslab(file_space.id, H5S_SELECT_SET, start, nullptr, count, nullptr) >= 0 &&
                    H5Dread(array.id, integers ? H5T_NATIVE_INT32 : H5T_NATIVE_FLOAT, memory_space.id, file_space.id, H5P_DEFAULT, values) >= 0;
  require_done(done, path_, "reading", name);
}

void Hdf5File::read_rows(const std::string& name, int64_t begin, int64_t end, std::span<float> values) const {
  const Shape all = shape(name);
  require(static_cast<int64_t>(values.size()) == (end - begin) * all.count(1, all.rank()), "hdf5: ", values.size(), " values do not hold rows ",
          begin, "..", end, " of ", all);
  read(name, begin, end, false, values.data());
}

std::vector<int32_t> Hdf5File::read_integers(const std::string& name) const {
  const Shape all = shape(name);
  std::vector<int32_t> values(static_cast<size_t>(all.count()));
  read(name, 0, all[0], true, values.data());
  return values;
}

}  // namespace sinkgrad
