// Batches larger than the second and third dimension of a CUDA grid. (A launch here has one dimension, of up to 2^31 - 1 blocks: cuda/launch.h.)
#include <catch2/catch.hpp>

#include "tests/batch_check.h"

using namespace sinkgrad;

TEST_CASE("fault 88: batches of more than 65535 matrices on the GPU") {
  for (const BatchedOp& op : batched_ops())
    for (const int64_t batch : {65'535, 65'536, 70'000}) CHECK(wrong_item(op, batch, Device::cuda()).empty());
}
