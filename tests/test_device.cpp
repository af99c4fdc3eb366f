// What is said where a GPU cannot be used: every sentence, and exit code 3 of the program. Runs on machines with and without CUDA.
#include <catch2/catch.hpp>
#include <filesystem>

#include "core/device.h"
#include "core/file.h"
#include "cuda/opening.h"
#include "program.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
namespace fs = std::filesystem;

namespace {

/// Why no GPU can be opened here; empty where one can.
std::string reason() {
  try {
    Device::cuda();
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("fault 87: each obstacle is one sentence of its own") {
  using namespace sinkgrad::cuda;
  CHECK(obstacle({.runtime = 13000, .too_old = true}) == "cuda: this machine has no NVIDIA driver");
  CHECK(obstacle({.driver = 12040, .runtime = 13000, .too_old = true}) ==
        "cuda: the NVIDIA driver is too old: it supports CUDA 12.4, this sinkgrad needs CUDA 13.0");
  CHECK(obstacle({.driver = 13000, .runtime = 13000}) == "cuda: the driver sees no GPU");
  CHECK(obstacle({.driver = 13000, .runtime = 13000, .visible = "99", .restricted = true}) ==
        "cuda: the driver sees no GPU (CUDA_VISIBLE_DEVICES is '99')");
  CHECK(obstacle({.driver = 13000, .runtime = 13000, .restricted = true}) == "cuda: the driver sees no GPU (CUDA_VISIBLE_DEVICES is '')");
  CHECK(obstacle({.driver = 13000, .runtime = 13000, .count = 2, .index = 7}) == "cuda: there is no GPU 7, this machine has 2, counted from 0");
  CHECK_THAT(obstacle({.driver = 13000, .runtime = 13000, .error = "mismatch"}), Contains("cannot be listed: mismatch"));
  CHECK(obstacle({.driver = 13000, .runtime = 13000, .count = 2, .index = 1}).empty());
}

TEST_CASE("fault 86: kernels for another GPU are told with both architectures") {
  CHECK(cuda::unusable("Tesla T4", 75, "sm_80, sm_90, compute_90", "no kernel image") ==
        "cuda: the kernels do not run on Tesla T4: they are built for sm_80, sm_90, compute_90, the device is sm_75: no kernel image");
}

TEST_CASE("a build without CUDA says so") {
  if (!Device::built_with_cuda()) CHECK_THAT(reason(), StartsWith("cuda: this sinkgrad was built without CUDA, there is no "));
}

TEST_CASE("a CUDA library that was cut short or is of another build is named before it runs, and the CPU works") {
  const TemporaryFolder folder;
  const fs::path library = fs::path(SINKGRAD_PROGRAM).parent_path().parent_path() / "libsinkgrad.so";
  fs::copy_file(library, folder.path / fs::read_symlink(library).filename());
  const std::string backend = folder / "libsinkgrad_cuda.so", setting = "LD_LIBRARY_PATH=" + folder.path.string();
  const auto bytes = [](const fs::path& path) { return read_file(path, uint64_t{1} << 30); };
  for (const auto& [content, message] :
       {std::pair(bytes(library).substr(0, 10'000), backend + " is not a whole library"),
        std::pair(bytes(SINKGRAD_FAKE_CUDA_OTHER), backend + " must be of the same build as libsinkgrad, " SINKGRAD_BUILD ", got 0.0.9-0123456789ab"),
        std::pair(bytes(library), backend + " must be of the same build as libsinkgrad, " SINKGRAD_BUILD ", got one that does not say"),
        std::pair(bytes(SINKGRAD_FAKE_CUDA_SAME), std::string("the fake backend was asked"))}) {
    write_file(backend, content);
    const Result refused = run("gradcheck --op neg --device cuda", setting), plain = run("gradcheck --op neg", setting);
    CHECK(refused.code == 3);
    CHECK(refused.err == "sinkgrad: cuda: " + message + "\n");
    CHECK(plain.code == 0);
  }
}

TEST_CASE("fault 87: --device cuda exits with 3 and the sentence, --device auto goes on with one note") {
  const std::string why = reason();
  for (const char* command : {"info --device cuda", "gradcheck --op neg --device cuda", "train set_shapes_small --device cuda --print-config"}) {
    CAPTURE(command);
    const Result r = run(command);
    if (why.empty() || std::string(command).ends_with("--print-config")) {
      CHECK(r.code == 0);
      continue;
    }
    CHECK(r.code == 3);
    CHECK(r.err == "sinkgrad: " + why + "\n");
    CHECK(r.out.empty());
  }
  CHECK_THAT(run("info").out, Contains("devices\n  cpu") && Contains(why));
  CHECK_THAT(run("info --device cpu").out, StartsWith("devices\n  cpu"));
  for (const char* wrong : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x"}) {
    CAPTURE(wrong);
    const Result r = run(std::string("info --device ") + wrong);
    CHECK(r.code == 2);
    CHECK_THAT(r.err, Contains("must be auto, cpu, cuda or cuda:N"));
  }

  std::string folder = (fs::temp_directory_path() / "device-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()));
  const std::string train =
      "train set_shapes_small --set data.points=16 --set data.train=16 --set data.test=8 --set model.dim=8 --set model.heads=2 "
      "--max-steps 1 --out " +
      folder;
  const Result refused = run(train + "/a --device cuda"), plain = run(train + "/b"), quiet = run(train + "/c -q");
  CHECK(refused.code == (why.empty() ? 0 : 3));
  CHECK(fs::exists(folder + "/a") == why.empty());
  CHECK(plain.code == 0);
  CHECK((plain.err.find("note   running on the CPU: " + why) != std::string::npos) == (Device::built_with_cuda() && !why.empty()));
  CHECK(quiet.err.empty());
  fs::remove_all(folder);
}

#ifdef SINKGRAD_FAKE_DRIVER
TEST_CASE("fault 87: an old driver and a driver without a GPU, as the CUDA runtime itself tells them") {
  const std::string library = "LD_LIBRARY_PATH=" SINKGRAD_FAKE_DRIVER ":\"$LD_LIBRARY_PATH\" ";
  const Result old = run("info --device cuda", library + "FAKE_DRIVER_VERSION=11040");
  CHECK(old.code == 3);
  CHECK_THAT(old.err, Contains("the NVIDIA driver is too old: it supports CUDA 11.4, this sinkgrad needs CUDA 1"));
  const Result none = run("info --device cuda:7", library + "FAKE_DRIVER_VERSION=99000 CUDA_VISIBLE_DEVICES=99");
  CHECK(none.code == 3);
  CHECK(none.err == "sinkgrad: cuda: the driver sees no GPU (CUDA_VISIBLE_DEVICES is '99')\n");
}
#endif
