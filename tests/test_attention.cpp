// Masks in attention: excluded means excluded, fully masked rows are zeros, and nothing of a pad reaches a gradient.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ops/ops.h"

using namespace sinkgrad;

namespace {

Tensor random_tensor(const Shape& shape, uint64_t seed) {
  Tensor t(shape, DType::f64);
  RandomStream random(seed, "attention test");
  for (double& v : t.span<double>()) v = random.normal();
  return t;
}

struct Grads {
  std::vector<double> out, q, k, v, plan;
};

/// Attention with loss weights that are zero on excluded queries.
Grads attend(const Tensor& q, const Tensor& k, const Tensor& v, const SinkhornOptions& options, const Tensor& keys, const Tensor& queries,
             const Tensor& pairs, const Tensor& cotangent) {
  Tape tape(DType::f64);
  const Var vq = tape.variable(q), vk = tape.variable(k), vv = tape.variable(v);
  AttentionMasks masks;
  if (keys) masks.key_is_padding = tape.leaf(keys);
  if (queries) masks.query_is_padding = tape.leaf(queries);
  if (pairs) masks.pair_is_hidden = tape.leaf(pairs);
  SinkhornOptions exposed = options;
  exposed.expose_plan = true;
  const Var o = sinkhorn_attention(vq, vk, vv, 1, 0.7, exposed, masks);
  tape.backward(o, cotangent);
  return {to_doubles(tape.value(o)), to_doubles(tape.grad(vq)), to_doubles(tape.grad(vk)), to_doubles(tape.grad(vv)), to_doubles(attention_plan(o))};
}

}  // namespace

TEST_CASE("fault 15: a fully masked row is zero and poisons no gradient") {
  // Sample 1 has keys 2, 3 padded and a band that shows query 3 only keys 2, 3: it sees nothing.
  const Tensor q = random_tensor({2, 4, 3}, 1), k = random_tensor({2, 4, 3}, 2), v = random_tensor({2, 4, 3}, 3), w = random_tensor({2, 4, 3}, 4);
  const Tensor keys = Tensor::of<int32_t>({2, 4}, {0, 0, 0, 0, 0, 0, 1, 1});
  Tensor band({4, 4}, DType::i32);
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) band.span<int32_t>()[static_cast<size_t>(i * 4 + j)] = j > i || j < i - 1;
  const Grads g = attend(q, k, v, {}, keys, {}, band, w);
  for (int d = 0; d < 3; ++d) CHECK(g.out[static_cast<size_t>((4 + 3) * 3 + d)] == 0);
  for (int j = 0; j < 4; ++j) CHECK(g.plan[static_cast<size_t>((4 + 3) * 4 + j)] == 0);
  // The gradients are those of a loss without that row.
  Tensor without = w.clone();
  for (int d = 0; d < 3; ++d) without.span<double>()[static_cast<size_t>((4 + 3) * 3 + d)] = 0;
  const Grads h = attend(q, k, v, {}, keys, {}, band, without);
  for (size_t i = 0; i < g.q.size(); ++i) {
    CHECK(std::isfinite(g.q[i]));
    CHECK(g.q[i] == h.q[i]);
    CHECK(g.k[i] == h.k[i]);
    CHECK(g.v[i] == h.v[i]);
  }
}

TEST_CASE("fault 15: a sample that is all padding gives zeros in every mode") {
  const Tensor q = random_tensor({2, 3, 2}, 5), k = random_tensor({2, 3, 2}, 6), v = random_tensor({2, 3, 2}, 7), w = random_tensor({2, 3, 2}, 8);
  const Tensor pads = Tensor::of<int32_t>({2, 3}, {0, 0, 0, 1, 1, 1});
  for (int l : {1, 2, 3, 21})
    for (auto mode : {SinkhornGradient::unrolled, SinkhornGradient::implicit, SinkhornGradient::frozen}) {
      const Grads g = attend(q, k, v, {.iterations = l, .gradient = mode}, pads, pads, {}, w);
      for (size_t i = 6; i < 12; ++i) {
        CHECK(g.out[i] == 0);
        CHECK(g.q[i] == 0);
        CHECK(g.k[i] == 0);
        CHECK(g.v[i] == 0);
      }
      for (size_t i = 0; i < 6; ++i) CHECK(std::isfinite(g.q[i]));
    }
}

TEST_CASE("fault 17: a mask is a select, also in the gradient") {
  Tape tape(DType::f64);
  const Tensor x = Tensor::of<double>({5}, {1, 1, 1, 1, 1}), pick = Tensor::of<double>({5}, {0, 0, 1, 0, 0});
  const Tensor mask = Tensor::of<int32_t>({5}, {0, 1, 0, 0, 0});
  const Var v = tape.variable(x);
  tape.backward(softmax(v, -1, tape.leaf(mask)), pick);
  const auto g = to_doubles(tape.grad(v));
  CHECK(g[1] == 0);
  CHECK(g[2] == Approx(3.0 / 16));
  for (size_t i : {0, 3, 4}) CHECK(g[i] == Approx(-1.0 / 16));
}

TEST_CASE("fault 18: lengths as a padding mask; wrong shapes name both") {
  const Tensor q = random_tensor({4, 5, 2}, 9), w = random_tensor({4, 5, 2}, 10);
  const int lengths[] = {5, 4, 1, 0};
  Tensor pads({4, 5}, DType::i32);
  for (int b = 0; b < 4; ++b)
    for (int t = lengths[b]; t < 5; ++t) pads.span<int32_t>()[static_cast<size_t>(b * 5 + t)] = 1;
  for (int l : {1, 3}) {
    const Grads g = attend(q, q, q, {.iterations = l}, pads, pads, {}, w);
    for (int b = 0; b < 4; ++b)
      for (int i = 0; i < 5; ++i) {
        double total = 0;
        for (int j = 0; j < 5; ++j) {
          const double p = g.plan[static_cast<size_t>((b * 5 + i) * 5 + j)];
          if (i >= lengths[b] || j >= lengths[b]) CHECK(p == 0);
          total += p;
        }
        CHECK(total == Approx(i < lengths[b] ? 1 : 0).margin(1e-14));
      }
  }
  CHECK_THROWS_WITH(attend(q, q, q, {}, Tensor({4, 4}, DType::i32), {}, {}, w),
                    Catch::Contains("key_is_padding") && Catch::Contains("(4,4)") && Catch::Contains("(4,5,2)"));
  CHECK_THROWS_WITH(attend(q, q, q, {}, Tensor({4, 5}, DType::f64), {}, {}, w), Catch::Contains("i32") && Catch::Contains("f64"));
}

TEST_CASE("fault 20: rows of every width, and rows that begin with -inf") {
  for (int64_t m : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025})
    for (int64_t hidden : {int64_t{0}, m - 1}) {
      Tensor x({3, m}, DType::f32);
      RandomStream random(static_cast<uint64_t>(m), "widths");
      for (float& v : x.span<float>()) v = static_cast<float>(5 * random.normal());
      for (int64_t j = 0; j < hidden; ++j) x.span<float>()[static_cast<size_t>(j)] = -std::numeric_limits<float>::infinity();
      Tape tape(DType::f32);
      for (const Var p : {softmax(tape.leaf(x)), sinkhorn(tape.leaf(x))})
        for (int64_t i = 0; i < 3; ++i) {
          double z = 0, worst = 0;
          for (int64_t j = 0; j < m; ++j) z += std::exp(static_cast<double>(x.span<float>()[static_cast<size_t>(i * m + j)]));
          for (int64_t j = 0; j < m; ++j) {
            const auto k = static_cast<size_t>(i * m + j);
            const double e = std::abs(p.span<float>()[k] - std::exp(static_cast<double>(x.span<float>()[k])) / z);
            if (!(e <= worst)) worst = e;
          }
          INFO("width " << m << ", first " << hidden << " hidden");
          CHECK(worst <= 1e-6);
        }
    }
}

TEST_CASE("a batch of one equals its slice of a larger batch, to the bit") {
  const Tensor q = random_tensor({3, 6, 4}, 11), k = random_tensor({3, 5, 4}, 12), v = random_tensor({3, 5, 4}, 13), w = random_tensor({3, 6, 4}, 14);
  auto cut = [](const Tensor& t, int64_t b) {
    const auto s = t.view().rows(b, b + 1);
    return Tensor::of<double>(s.shape, to_doubles(s));
  };
  const SinkhornOptions options{.iterations = 31, .tolerance = 1e-3};
  const Grads all = attend(q, k, v, options, {}, {}, {}, w);
  for (int64_t b = 0; b < 3; ++b) {
    const Grads one = attend(cut(q, b), cut(k, b), cut(v, b), options, {}, {}, {}, cut(w, b));
    for (size_t i = 0; i < one.out.size(); ++i) {
      CHECK(one.out[i] == all.out[static_cast<size_t>(b) * one.out.size() + i]);
      CHECK(one.q[i] == all.q[static_cast<size_t>(b) * one.q.size() + i]);
    }
    for (size_t i = 0; i < one.k.size(); ++i) CHECK(one.k[i] == all.k[static_cast<size_t>(b) * one.k.size() + i]);
  }
}

TEST_CASE("the fused op keeps no n x m matrix for its backward") {
  Tape tape(DType::f32);
  const int64_t n = 512;
  Tensor x({1, n, 8});
  const Var v = tape.variable(x), o = sinkhorn_attention(v, v, v, 1, 1, {.iterations = 5});
  CHECK(tape.memory().active_bytes() < static_cast<size_t>(n * n) * sizeof(float) / 8);
  CHECK_THROWS_WITH(attention_plan(o), Catch::Contains("keeps 4 buffers"));
}

TEST_CASE("integers where floats belong are refused by name") {
  Tape tape(DType::f64);
  const Var x = tape.leaf(Tensor({2, 3, 4}, DType::i32)), y = tape.leaf(Tensor({2, 3, 4}, DType::f64));
  CHECK_THROWS_WITH(softmax(x), Catch::Contains("softmax") && Catch::Contains("i32"));
  CHECK_THROWS_WITH(matmul(y, x, false, true), Catch::Contains("matmul") && Catch::Contains("i32"));
  CHECK_THROWS_WITH(sinkhorn(x), Catch::Contains("sinkhorn") && Catch::Contains("i32"));
  CHECK_THROWS_WITH(sinkhorn_attention(y, y, x, 1, 1), Catch::Contains("sinkhorn_attention") && Catch::Contains("i32"));
}
