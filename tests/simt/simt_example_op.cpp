// The CUDA kernels of docs/add_an_op.md on the host executor, against the CPU kernels of the same page.
#include <catch2/catch.hpp>

#include "core/gradcheck.h"
#include "example_op/cpu/swiglu.cpp"
#include "example_op/cuda/swiglu.cu"
#include "example_op/swiglu.cpp"

using namespace sinkgrad;

TEST_CASE("the tutorial's CUDA kernels agree with the CPU on every sample") {
  const OpDef& op = find_op("swiglu");
  REQUIRE(op.cuda.forward);
  for (size_t s = 0; s < op.samples().size(); ++s) {
    const GradcheckReport r = crosscheck(op, s, Device::cuda());
    INFO(r.text());
    CHECK(r.passed());
  }
}
