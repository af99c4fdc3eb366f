// Dropout: the mask is a function of seed, step, stream and element, whatever the dtype and the number of threads.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/parallel.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

constexpr uint64_t kStream = stream_id("encoder.0.dropout");

struct Result {
  std::vector<double> y, dx;
};

template <class T>
Result run(int64_t n, double p, const RandomState& random = {1, 0}, uint64_t stream = kStream) {
  const Tensor ones = Tensor::of<T>({n}, std::vector<T>(static_cast<size_t>(n), T(1)));
  Tape tape(dtype_of<T>());
  tape.set_random(random);
  const Var x = tape.variable(ones);
  const Var y = dropout(x, p, stream);
  tape.backward(y, ones);
  return {to_doubles(tape.value(y)), to_doubles(tape.grad(x))};
}

}  // namespace

TEST_CASE("dropout keeps 1 - p of the elements and scales them by 1 / (1 - p); the gradient has the same mask") {
  constexpr int64_t n = 100003;
  for (double p : {0.1, 0.5, 0.9}) {
    const Result r = run<double>(n, p);
    CHECK(r.dx == r.y);
    int64_t kept = 0;
    for (double v : r.y) {
      REQUIRE((v == 0 || v == 1 / (1 - p)));
      kept += v != 0;
    }
    const double deviation = std::sqrt(n * p * (1 - p));
    CHECK(std::abs(static_cast<double>(kept) - n * (1 - p)) < 4 * deviation);
  }
}

TEST_CASE("dropout draws element i from word i % 4 of Philox block i / 4") {
  constexpr int64_t n = 10007;  // several chunks and a rest
  const auto y = run<double>(n, 0.3, {5, 11}).y;
  int64_t different = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t word = philox_block(philox_key(5, kStream), 11, static_cast<uint64_t>(i / 4))[static_cast<size_t>(i % 4)];
    different += (y[static_cast<size_t>(i)] != 0) != (word >> 8 >= std::lround(0.3 * (1 << 24)));
  }
  CHECK(different == 0);
}

TEST_CASE("dropout with p = 0 is the identity and with p = 1 gives zeros, even of infinite values") {
  CHECK(run<float>(9, 0).y == std::vector<double>(9, 1.0));
  CHECK(run<float>(9, 0).dx == std::vector<double>(9, 1.0));
  CHECK(run<float>(9, 1).y == std::vector<double>(9, 0.0));
  CHECK(run<float>(9, 1).dx == std::vector<double>(9, 0.0));
  const Tensor x = Tensor::of<float>({2}, {INFINITY, NAN});
  Tape tape;
  const Var y = dropout(tape.leaf(x), 1, kStream);
  CHECK(y.span<float>()[0] == 0);
  CHECK(y.span<float>()[1] == 0);
}

TEST_CASE("dropout masks: same bits for f32 and f64 and any number of threads, others for another seed, step or stream") {
  const int before = threads();
  set_threads(1);
  const auto y = run<float>(10007, 0.5).y;
  CHECK(run<double>(10007, 0.5).y == y);
  for (int n : {2, 3, 7}) {
    set_threads(n);
    CHECK(run<float>(10007, 0.5).y == y);
  }
  set_threads(before);
  CHECK(run<float>(10007, 0.5, {2, 0}).y != y);
  CHECK(run<float>(10007, 0.5, {1, 1}).y != y);
  CHECK(run<float>(10007, 0.5, {1, 0}, stream_id("encoder.1.dropout")).y != y);
  // A longer tensor begins with the same mask.
  auto longer = run<float>(20000, 0.5).y;
  longer.resize(10007);
  CHECK(longer == y);
}

TEST_CASE("dropout refuses a p outside 0..1 and a stream that an attribute cannot hold") {
  CHECK_THROWS_WITH(run<float>(3, 1.5), "dropout: p must lie in 0..1, got 1.5");
  CHECK_THROWS_WITH(run<float>(3, -0.1), "dropout: p must lie in 0..1, got -0.1");
  CHECK_THROWS_AS(run<float>(3, NAN), Error);
  CHECK_THROWS_AS(run<float>(3, 0.5, {}, uint64_t{1} << 53), Error);
}
