// Every op on the GPU against the CPU in float64, and what the backend promises.
#include <catch2/catch.hpp>

#include "core/gradcheck.h"

using namespace sinkgrad;

TEST_CASE("every op agrees with the CPU on every sample") {
  for (const OpDef* op : registered_ops())
    for (size_t s = 0; s < op->samples().size(); ++s) {
      const GradcheckReport r = crosscheck(*op, s, Device::cuda());
      INFO(r.text());
      CHECK(r.passed());
    }
}

TEST_CASE("a process uses one GPU") {
  CHECK_THROWS_WITH(Device::cuda(1), Catch::Contains("cuda: this process uses GPU 0"));
  CHECK(Device::cuda() == Device::cuda(0));
}

TEST_CASE("copies of any size arrive, in order, also when the host's memory changes at once") {
  const Device gpu = Device::cuda();
  for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{4097}, int64_t{3} << 21}) {  // the last is longer than the ring of uploads
    Tensor host({n}, DType::f32), device({n}, DType::f32, gpu);
    for (int round = 0; round < 20; ++round) {
      std::fill(host.span<float>().begin(), host.span<float>().end(), static_cast<float>(round));
      device.copy_from(host);
    }
    std::fill(host.span<float>().begin(), host.span<float>().end(), -1.f);
    CHECK(to_doubles(device.view(), gpu) == std::vector<double>(static_cast<size_t>(n), 19));
    CHECK(to_doubles(device.clone().view(), gpu) == std::vector<double>(static_cast<size_t>(n), 19));
    device.zero();
    CHECK(to_doubles(device.to(Device::cpu()).view()) == std::vector<double>(static_cast<size_t>(n), 0));
  }
}

TEST_CASE("an allocation that cannot be met names the bytes asked for and those that are free") {
  CHECK_THROWS_WITH(Device::cuda().backend().allocate(size_t{1} << 50),
                    Catch::Contains("cuda: out of memory, asked for 1125899906842624 bytes, free are "));
  CHECK_NOTHROW(Device::cuda().backend().synchronize());
}
