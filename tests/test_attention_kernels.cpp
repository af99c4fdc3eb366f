// Fused attention at sizes that take every path of the CPU kernels: several chunks and stripes, remainders, masks, scores that leave the
// scaling domain. The reference is the composition of matmul and sinkhorn in float64.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/parallel.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

Tensor random_tensor(const Shape& shape, uint64_t seed, DType dtype = DType::f32) {
  Tensor t(shape, dtype);
  RandomStream random(seed, "attention kernels");
  dispatch(dtype, [&]<class T>() {
    for (T& v : t.span<T>()) v = static_cast<T>(static_cast<float>(random.normal()));
  });
  return t;
}

Tensor as(DType dtype, const Tensor& t) {
  Tensor out(t.shape(), dtype);
  const std::vector<double> values = to_doubles(t.view());
  dispatch(dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) out.span<T>()[i] = static_cast<T>(values[i]);
  });
  return out;
}

struct Problem {
  Tensor q, k, v, cotangent;
  int heads = 1;
  double scale = 0.25;
  SinkhornOptions options;
  Tensor keys, queries, pairs;
  bool one_tensor = false;  ///< q is query, key and value
};

/// O, dQ, dK, dV
using Outcome = std::vector<std::vector<double>>;

Outcome outcome(const Problem& p, DType dtype, bool fused, Precision precision = Precision::full) {
  const Tensor q_value = as(dtype, p.q), k_value = as(dtype, p.k), v_value = as(dtype, p.v), cotangent = as(dtype, p.cotangent);
  Tape tape(dtype);
  tape.set_precision(precision);
  const Var q = tape.variable(q_value), k = p.one_tensor ? q : tape.variable(k_value), v = p.one_tensor ? q : tape.variable(v_value);
  AttentionMasks masks;
  if (p.keys) masks.key_is_padding = tape.leaf(p.keys);
  if (p.queries) masks.query_is_padding = tape.leaf(p.queries);
  if (p.pairs) masks.pair_is_hidden = tape.leaf(p.pairs);
  Var out;
  if (fused) {
    out = sinkhorn_attention(q, k, v, p.heads, p.scale, p.options, masks);
  } else {
    auto split = [&](Var x) {
      const Shape& s = x.shape();
      return transpose(tape.reshape(x, {s[0], s[1], p.heads, s[2] / p.heads}), 1, 2);
    };
    const Var plan = sinkhorn(scale_shift(matmul(split(q), split(k), false, true), p.scale, 0), p.options, masks);
    out = tape.reshape(transpose(matmul(plan, split(v)), 1, 2), {q.shape()[0], q.shape()[1], v.shape()[2]});
  }
  tape.backward(out, cotangent);
  return {to_doubles(tape.value(out)), to_doubles(tape.grad(q)), to_doubles(tape.grad(k)), to_doubles(tape.grad(v))};
}

/// The largest difference over the largest entry of b, or over 1 where b vanishes; not a number counts as infinite.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, largest = 1;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= worst)) worst = std::isnan(d) ? HUGE_VAL : d;
    largest = std::max(largest, std::abs(b[i]));
  }
  return worst / largest;
}

/// The root of the mean squared difference, over that of b.
double spread(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(difference / size);
}

Tensor rounded_to_bf16(const Tensor& t) {
  Tensor out(t.shape(), DType::f32);
  for (size_t i = 0; i < out.span<float>().size(); ++i) {
    const double x = t.span<float>()[i], unit = std::ldexp(1.0, std::ilogb(x) - 7);
    out.span<float>()[i] = static_cast<float>(std::nearbyint(x / unit) * unit);
  }
  return out;
}

Problem random_problem(int64_t batch, int64_t n, int64_t m, int heads, int64_t d, int64_t e, int l, DType dtype = DType::f32) {
  Problem p{random_tensor({batch, n, heads * d}, 1, dtype), random_tensor({batch, m, heads * d}, 2, dtype),
            random_tensor({batch, m, heads * e}, 3, dtype), random_tensor({batch, n, heads * e}, 4, dtype)};
  p.heads = heads;
  p.options.iterations = l;
  return p;
}

void check_against_reference(const Problem& p) {
  const Outcome expected = outcome(p, DType::f64, false), f32 = outcome(p, DType::f32, true), f64 = outcome(p, DType::f64, true);
  const char* names[] = {"O", "dQ", "dK", "dV"};
  for (size_t i = 0; i < 4; ++i) {
    INFO(names[i]);
    CHECK(distance(f32[i], expected[i]) < 1e-5);
    CHECK(distance(f64[i], expected[i]) < 1e-13);
  }
}

Tensor sparse_mask(const Shape& shape, uint64_t seed, double share) {
  Tensor t(shape, DType::i32);
  RandomStream random(seed, "attention kernels mask");
  for (int32_t& v : t.span<int32_t>()) v = random.uniform(0, 1) < share;
  return t;
}

/// Scores q_i k_j with n = m, d = 3: a random part and an offset for every row and column.
Problem offset_problem(int64_t n, int l, double sigma, const std::function<double(int64_t, int64_t)>& row_times_column) {
  Problem p = random_problem(1, n, n, 1, 3, 8, l);
  p.scale = 1;
  for (int64_t i = 0; i < n; ++i) {
    auto q = p.q.span<float>().subspan(static_cast<size_t>(3 * i), 3), k = p.k.span<float>().subspan(static_cast<size_t>(3 * i), 3);
    for (size_t c = 0; c < 2; ++c) q[c] *= static_cast<float>(sigma);
    q[2] = static_cast<float>(row_times_column(i, -1));
    k[2] = static_cast<float>(row_times_column(-1, i));
  }
  return p;
}

}  // namespace

TEST_CASE("fused attention equals the composition over chunks, stripes and remainders") {
  for (const int l : {1, 2, 3, 4, 5, 21}) check_against_reference(random_problem(1, 300, 171, 2, 20, 36, l));
  check_against_reference(random_problem(2, 67, 530, 1, 5, 16, 3));
  check_against_reference(random_problem(1, 1100, 40, 1, 64, 64, 5));
  check_against_reference(random_problem(1, 33, 17, 1, 256, 4, 3));
  for (const auto gradient : {SinkhornGradient::frozen, SinkhornGradient::implicit}) {
    Problem p = random_problem(1, 150, 150, 1, 8, 8, 41);
    p.options.gradient = gradient;
    p.options.rows_sum_to_inverse_count = true;
    check_against_reference(p);
  }
}

TEST_CASE("one tensor as query, key and value receives all three gradients") {
  for (const int64_t n : {40, 300})
    for (const int l : {1, 3}) {
      Problem p = random_problem(1, n, n, 2, 16, 16, l);
      p.one_tensor = true;
      check_against_reference(p);
    }
}

TEST_CASE("masks of every kind over chunks") {
  for (const int l : {1, 3, 4}) {
    Problem p = random_problem(2, 200, 170, 1, 16, 16, l);
    p.keys = sparse_mask({2, 170}, 5, 0.2);
    p.queries = sparse_mask({2, 200}, 6, 0.2);
    check_against_reference(p);
    if (l > 1) continue;  // pair masks exist at one half-step only
    p.pairs = sparse_mask({200, 170}, 7, 0.3);
    for (int64_t j = 0; j < 170; ++j) p.pairs.span<int32_t>()[static_cast<size_t>(150 * 170 + j)] = 1;  // a query that sees nothing
    for (int64_t i = 0; i < 200; ++i) p.pairs.span<int32_t>()[static_cast<size_t>(i * 170)] = 1;        // and a key that nothing sees
    for (int32_t& hidden : p.keys.span<int32_t>().subspan(170, 170)) hidden = 1;                        // a sample of pads alone
    check_against_reference(p);
  }
}

TEST_CASE("results do not depend on the number of threads, to the bit, also where threads share a matrix") {
  const int before = threads();
  for (const auto& [batch, n, l] : {std::tuple{1, 1030, 1}, {1, 1030, 5}, {3, 600, 3}, {1, 70, 3}, {5, 64, 3}}) {
    const Problem p = random_problem(batch, n, n + 3, 1, 16, 16, l);
    set_threads(1);
    const Outcome one = outcome(p, DType::f32, true);
    for (const int count : {2, 3}) {
      set_threads(count);
      CHECK(outcome(p, DType::f32, true) == one);
    }
  }
  set_threads(before);
}

TEST_CASE("scores that leave the scaling domain keep float32 accuracy") {
  struct Family {
    std::string name;
    double sigma;
    std::function<double(int64_t, int64_t)> offset;  ///< of row i (second argument -1) or of column j (first argument -1)
  };
  const int64_t n = 64;
  auto column = [](double shift) { return [shift](int64_t i, int64_t j) { return i >= 0 ? 1.0 : j == 5 ? shift : 0.0; }; };
  const std::vector<Family> families = {
      {"N(0, 20)", 14, column(0)},
      {"a column at -80", 1, column(-80)},
      {"a column at -85", 1, column(-85)},
      {"a column at -90", 1, column(-90)},
      {"a column at -200", 1, column(-200)},
      {"a column at 200", 1, column(200)},
      {"blocks apart by 100", 1, [](int64_t i, int64_t j) { return (i >= 0 ? i : j) < 32 ? 7.0 : -7.0; }},
      {"a sink with a gap of 110", 0, [](int64_t i, int64_t j) { return i >= 0 ? (i == 0 ? 0.0 : 1.0) : (j == 0 ? 110.0 : 0.0); }}};
  for (const auto& [name, sigma, offset] : families)
    for (const int l : {1, 3, 5, 21, 41}) {
      INFO(name << ", l = " << l);
      const Problem p = offset_problem(n, l, sigma, offset);
      const Outcome expected = outcome(p, DType::f64, false), got = outcome(p, DType::f32, true), exact = outcome(p, DType::f64, true);
      for (size_t i = 0; i < 4; ++i) {
        CHECK(distance(got[i], expected[i]) < 3e-4);
        CHECK(distance(exact[i], expected[i]) < 1e-10);
      }
    }
}

TEST_CASE("products in bf16 err little more than rounding the inputs does") {
  for (const auto& [n, m, d, l] :
       {std::tuple{256, 256, 64, 1}, {256, 256, 64, 3}, {300, 171, 20, 5}, {65, 530, 33, 21}, {70, 2500, 16, 3}, {1024, 1024, 64, 3}}) {
    Problem p = random_problem(1, n, m, 2, d, d, l);
    p.scale = 1 / std::sqrt(d);
    if (l == 5) p.keys = sparse_mask({1, m}, 5, 0.2);
    Problem rounded = p;
    for (Tensor* t : {&rounded.q, &rounded.k, &rounded.v, &rounded.cotangent}) *t = rounded_to_bf16(*t);
    const Outcome exact = outcome(p, DType::f64, true), inputs = outcome(rounded, DType::f64, true),
                  products = outcome(p, DType::f32, true, Precision::bf16);
    const char* names[] = {"O", "dQ", "dK", "dV"};
    for (size_t i = 0; i < 4; ++i) {
      INFO(names[i] << ", " << n << " x " << m << ", l = " << l);
      CHECK(spread(products[i], exact[i]) < 1.2 * spread(inputs[i], exact[i]));
      CHECK(spread(products[i], exact[i]) > 1e-4);  // it is bf16
    }
  }
}

TEST_CASE("an attention sink at length 1024, and scores of 1e4") {
  const Problem sink = offset_problem(1024, 21, 0, [](int64_t i, int64_t j) { return i >= 0 ? (i == 0 ? 0.0 : 1.0) : (j == 0 ? 90.0 : 0.0); });
  const Outcome expected = outcome(sink, DType::f64, false), got = outcome(sink, DType::f32, true);
  for (size_t i = 0; i < 4; ++i) CHECK(distance(got[i], expected[i]) < 3e-5);
  const Problem large = offset_problem(48, 3, 7000, [](int64_t, int64_t) { return 0.0; });
  for (const auto& values : outcome(large, DType::f32, true))
    for (const double v : values) CHECK(std::isfinite(v));
}
