// Point clouds in HDF5 files of any layout: which arrays there are, their types, ranks, sizes, chunks and values. The bytes of the container
// are the HDF5 library's own affair, whose reader is known to fail on damaged files; here every file is a valid container.
#include <fuzzer/FuzzedDataProvider.h>
#include <hdf5.h>

#include "datasets/point_clouds.h"
#include "fuzz/fuzz.h"
#include "temporary_folder.h"

namespace sinkgrad::fuzz {
namespace {

void add_array(hid_t file, const char* name, FuzzedDataProvider& data) {
  const hid_t types[] = {H5T_IEEE_F32LE, H5T_IEEE_F64BE, H5T_STD_I32LE, H5T_STD_U8LE, H5T_STD_I64BE, H5T_STD_U64LE, H5T_C_S1};
  const hid_t type = types[data.ConsumeIntegralInRange<size_t>(0, std::size(types) - 1)];
  const int rank = data.ConsumeIntegralInRange<int>(0, 8);
  std::vector<hsize_t> dims, chunk;
  hsize_t bytes = H5Tget_size(type);
  for (int i = 0; i < rank; ++i) {
    dims.push_back(data.ConsumeIntegralInRange<hsize_t>(0, 5));
    if (i == rank - 1 && data.ConsumeBool()) dims.back() = 3;
    chunk.push_back(std::max<hsize_t>(1, dims.back()));
    bytes *= dims.back();
  }
  const bool huge = data.ConsumeIntegralInRange(0, 20) == 0;  // a size that no memory holds, chunks that are not there
  if (huge && rank > 0) dims[0] = hsize_t{1} << data.ConsumeIntegralInRange(16, 62);
  const hid_t plan = H5Pcreate(H5P_DATASET_CREATE);
  if (huge && rank > 0) H5Pset_chunk(plan, rank, chunk.data());
  const hid_t space = rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, dims.data(), nullptr);
  const hid_t array = H5Dcreate2(file, name, type, space, H5P_DEFAULT, plan, H5P_DEFAULT);
  if (array >= 0 && !huge && bytes < (1 << 16)) {
    std::vector<uint8_t> values = data.ConsumeBytes<uint8_t>(bytes);
    values.resize(bytes + 1);
    H5Dwrite(array, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  }
  if (array >= 0) H5Dclose(array);
  H5Sclose(space);
  H5Pclose(plan);
}

}  // namespace

std::vector<std::string> seeds() { return {std::string(64, '\0'), std::string(200, '\x42')}; }

void feed(std::string_view input) {
  static const TemporaryFolder folder;
  static const bool quiet = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
  (void)quiet;
  FuzzedDataProvider data(reinterpret_cast<const uint8_t*>(input.data()), input.size());
  const MemoryFile made("");
  const hid_t file = H5Fcreate(made.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  for (const char* name : {"tr_cloud", "tr_label", "test_cloud", data.ConsumeBool() ? "test_labels" : "test_label"}) add_array(file, name, data);
  H5Fclose(file);
  read_cloud_h5(made.path(), folder.path);
}

}  // namespace sinkgrad::fuzz
