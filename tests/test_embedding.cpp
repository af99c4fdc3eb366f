// Embedding and set pooling: duplicates, refused indices, ties, masks, and bits that do not depend on threads.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/parallel.h"
#include "core/rng.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

struct Result {
  std::vector<double> y, dx;
};

Result pool(const Shape& shape, const std::vector<float>& x, const std::vector<int32_t>& mask = {}) {
  const Tensor value = Tensor::of<float>(shape, x);
  const Tensor masked = mask.empty() ? Tensor() : Tensor::of<int32_t>({shape[0], shape[1]}, mask);
  const Tensor ones = Tensor::of<float>({shape[0], shape[2]}, std::vector<float>(static_cast<size_t>(shape[0] * shape[2]), 1.0f));
  Tape tape;
  const Var in = tape.variable(value);
  const Var y = max_pool_set(in, masked ? tape.leaf(masked) : Var{});
  tape.backward(y, ones);
  return {to_doubles(tape.value(y)), to_doubles(tape.grad(in))};
}

}  // namespace

TEST_CASE("embedding copies rows and adds up the gradients of duplicates") {
  const Tensor table = Tensor::of<double>({3, 2}, {1, 2, 3, 4, 5, 6}), indices = Tensor::of<int32_t>({2, 2}, {2, 0, 2, 2});
  const Tensor cotangent = Tensor::of<double>({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  Tape tape(DType::f64);
  const Var t = tape.variable(table);
  const Var y = embedding(tape.leaf(indices), t);
  CHECK(y.shape() == Shape{2, 2, 2});
  CHECK(to_doubles(tape.value(y)) == std::vector<double>{5, 6, 1, 2, 5, 6, 5, 6});
  tape.backward(y, cotangent);
  CHECK(to_doubles(tape.grad(t)) == std::vector<double>{3, 4, 0, 0, 13, 16});
}

TEST_CASE("embedding refuses an index outside the table") {
  const Tensor table({5, 4}), high = Tensor::of<int32_t>({2, 3}, {0, 1, 2, 3, 4, 5}), low = Tensor::of<int32_t>({1}, {-1});
  Tape tape;
  const Var t = tape.leaf(table);
  CHECK_THROWS_WITH(embedding(tape.leaf(high), t), "embedding: index 5 at position (1,2) must lie in 0..4 of the table (5,4), got (2,3)");
  CHECK_THROWS_WITH(embedding(tape.leaf(low), t), Catch::StartsWith("embedding: index -1 at position (0)"));
  CHECK_THROWS_AS(embedding(Var{}, t), Error);
  CHECK_THROWS_AS(embedding(t, t), ShapeError);
  CHECK(tape.records().empty());
}

TEST_CASE("embedding gradients have the same bits for any number of threads") {
  const int before = threads();
  RandomStream random(1, "test_embedding");
  std::vector<int32_t> indices(2000);
  for (int32_t& i : indices) i = static_cast<int32_t>(random.below(7));
  std::vector<float> dy(2000 * 200);
  for (float& v : dy) v = static_cast<float>(random.uniform(-1, 1));
  const Tensor table({7, 200}), rows = Tensor::of<int32_t>({2000}, indices), cotangent = Tensor::of<float>({2000, 200}, dy);
  auto gradient = [&](int n) {
    set_threads(n);
    Tape tape;
    const Var t = tape.variable(table);
    tape.backward(embedding(tape.leaf(rows), t), cotangent);
    return to_doubles(tape.grad(t));
  };
  const auto one = gradient(1);
  for (int n : {2, 3, 7}) CHECK(gradient(n) == one);
  set_threads(before);
}

TEST_CASE("max_pool_set: ties go to the first, masked members take no part, a fully masked set gives 0") {
  const Result ties = pool({1, 3, 2}, {1, 5, 4, 5, 4, 2});
  CHECK(ties.y == std::vector<double>{4, 5});
  CHECK(ties.dx == std::vector<double>{0, 1, 1, 0, 0, 0});
  const Result masked = pool({3, 2, 1}, {9, -1, -2, -3, 7, 8}, {1, 0, 0, 0, 1, 1});
  CHECK(masked.y == std::vector<double>{-1, -2, 0});
  CHECK(masked.dx == std::vector<double>{0, 1, 1, 0, 0, 0});
  CHECK(pool({2, 0, 3}, {}).y == std::vector<double>(6, 0.0));
}

TEST_CASE("max_pool_set shows a NaN and lets -inf win where there is nothing else") {
  CHECK(std::isnan(pool({1, 3, 1}, {1, NAN, 2}).y[0]));
  const Result lowest = pool({1, 2, 1}, {-INFINITY, -INFINITY});
  CHECK(lowest.y == std::vector<double>{-INFINITY});
  CHECK(lowest.dx == std::vector<double>{1, 0});
}
