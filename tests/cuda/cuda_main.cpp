// Runs the tests that need a GPU; without one it says why and exits with 77, which CTest counts as skipped.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>

#include "core/check.h"
#include "core/device.h"

int main(int argc, char** argv) {
  try {
    sinkgrad::Device::cuda();
  } catch (const sinkgrad::DeviceError& error) {
    std::printf("skipped: %s\n", error.what());
    return 77;
  }
  return Catch::Session().run(argc, argv);
}
