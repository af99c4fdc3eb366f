// The vocabulary's models against plain references: reductions, tensor core products with their layouts, roundings.
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "cuda/reduce.h"
#include "simt/simt_test.h"

using namespace sinkgrad;
using namespace sinkgrad::cuda;
using simt::check_passes;
using simt::span_of;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> random_values(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> v(n);
  for (double& x : v) x = normal(random);
  return v;
}

template <class Op>
__global__ void reduce_block(Span<const double> x, Span<double> y, Op op) {
  STATIC_SHARED(double, scratch, kWarp);
  for (int round = 0; round < 2; ++round) y[thread_index()] = block_reduce(static_cast<double>(x[thread_index()]), op, scratch);
}

template <class T>
__global__ void log_sum_block(Span<const T> x, Span<T> y) {
  STATIC_SHARED(LogSum<T>, scratch, kWarp);
  LogSum<T> s;
  for (int64_t i = threadIdx.x; i < x.count; i += blockDim.x) s.add(x[i]);
  s = block_reduce(s, LogSumMerge{}, scratch);
  y[threadIdx.x] = s.log_sum();
}

__global__ void sum_cluster(Span<const double> x, Span<double> y) {
  STATIC_SHARED(double, scratch, kWarp);
  STATIC_SHARED(double, total, 1);
  const double mine = block_sum(static_cast<double>(x[thread_index()]), scratch);
  if (threadIdx.x == 0) total[0] = mine;
  cluster_sync();
  double sum = 0;
  for (int rank = 0; rank < cluster_size(); ++rank) sum += cluster_peer(total, rank)[0];
  cluster_sync();
  y[thread_index()] = sum;
}

__global__ void shuffle_all(Span<int32_t> y) {
  const int me = lane_index();
  const int64_t at = 6 * static_cast<int64_t>(threadIdx.x);
  y[at] = warp_shuffle(me, (me + 5) % 32);
  y[at + 1] = warp_shuffle_xor(me, 9);
  y[at + 2] = warp_shuffle_down(me, 3);
  y[at + 3] = static_cast<int32_t>(warp_ballot(me % 3 == 0));
  y[at + 4] = warp_any(me == 31 && warp_index() == 1);
  y[at + 5] = warp_any(false);
}

// The products, as PTX lays out their fragments: written from its figures, element by element.

__global__ void product_tf32(Span<const float> a, Span<const float> b, Span<float> c) {
  const int lane = lane_index();
  uint32_t fa[4], fb[2];
  float fc[4];
  for (int i = 0; i < 4; ++i) fa[i] = round_tf32(a[(lane / 4 + (i % 2 ? 8 : 0)) * 8 + lane % 4 + (i >= 2 ? 4 : 0)]);
  for (int i = 0; i < 2; ++i) fb[i] = round_tf32(b[(lane % 4 + (i ? 4 : 0)) * 8 + lane / 4]);
  for (int i = 0; i < 4; ++i) fc[i] = c[(lane / 4 + (i >= 2 ? 8 : 0)) * 8 + 2 * (lane % 4) + i % 2];
  mma_tf32(fc, fa, fb);
  for (int i = 0; i < 4; ++i) c[(lane / 4 + (i >= 2 ? 8 : 0)) * 8 + 2 * (lane % 4) + i % 2] = fc[i];
}

__global__ void product_bf16(Span<const float> a, Span<const float> b, Span<float> c) {
  const int lane = lane_index();
  auto a_at = [&](int i) { return (lane / 4 + (i % 4 >= 2 ? 8 : 0)) * 16 + 2 * (lane % 4) + i % 2 + (i >= 4 ? 8 : 0); };  // i-th half of 8
  auto b_at = [&](int i) { return (2 * (lane % 4) + i % 2 + (i >= 2 ? 8 : 0)) * 8 + lane / 4; };
  uint32_t fa[4], fb[2];
  float fc[4];
  for (int i = 0; i < 4; ++i) fa[i] = pack_bf16(a[a_at(2 * i)], a[a_at(2 * i + 1)]);
  for (int i = 0; i < 2; ++i) fb[i] = pack_bf16(b[b_at(2 * i)], b[b_at(2 * i + 1)]);
  for (int i = 0; i < 4; ++i) fc[i] = c[(lane / 4 + (i >= 2 ? 8 : 0)) * 8 + 2 * (lane % 4) + i % 2];
  mma_bf16(fc, fa, fb);
  for (int i = 0; i < 4; ++i) c[(lane / 4 + (i >= 2 ? 8 : 0)) * 8 + 2 * (lane % 4) + i % 2] = fc[i];
}

__global__ void product_f64(Span<const double> a, Span<const double> b, Span<double> c) {
  const int lane = lane_index();
  double fc[2];
  for (int i = 0; i < 2; ++i) fc[i] = c[lane / 4 * 8 + 2 * (lane % 4) + i];
  mma_f64(fc, a[lane / 4 * 4 + lane % 4], b[lane % 4 * 8 + lane / 4]);
  for (int i = 0; i < 2; ++i) c[lane / 4 * 8 + 2 * (lane % 4) + i] = fc[i];
}

/// c + a b for a (m, k), b (k, n), the operands cut to `bits` bits of mantissa, ties to even or away from zero.
std::vector<double> plain_product(const std::vector<float>& a, const std::vector<float>& b, std::vector<double> c, size_t m, size_t k, size_t n,
                                  int bits, bool even) {
  auto cut = [&](double x) {
    int exponent;
    const double scaled = std::ldexp(std::frexp(x, &exponent), bits + 1);  // an integer of bits + 1 bits, and a fraction
    return std::ldexp(even ? std::nearbyint(scaled) : std::round(scaled), exponent - bits - 1);
  };
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j)
      for (size_t l = 0; l < k; ++l) c[i * n + j] += cut(a[i * k + l]) * cut(b[l * n + j]);
  return c;
}

template <class K>
void check_product(const K& kernel, size_t k, int bits, bool even) {
  const size_t m = 16, n = 8;
  auto floats = [](const std::vector<double>& v) { return std::vector<float>(v.begin(), v.end()); };
  auto a = floats(random_values(m * k, 1)), b = floats(random_values(k * n, 2)), c0 = floats(random_values(m * n, 3));
  const auto expected = plain_product(a, b, {c0.begin(), c0.end()}, m, k, n, bits, even);
  check_passes([&] {
    auto c = c0;
    launch(kernel, {.blocks = 1, .threads = 32}, Span<const float>(span_of(a)), Span<const float>(span_of(b)), span_of(c));
    for (size_t i = 0; i < c.size(); ++i) CHECK(c[i] == Approx(expected[i]).margin(4e-6));
  });
}

}  // namespace

TEST_CASE("block reductions give every thread the combination of all") {
  for (const int threads : {32, 64, 96, 1024}) {
    auto x = random_values(static_cast<size_t>(3 * threads), 7);
    std::vector<double> sums(3), maxima(3, -kInfinity);
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t block = i / static_cast<size_t>(threads);
      sums[block] += x[i];
      maxima[block] = std::max(maxima[block], x[i]);
    }
    check_passes([&] {
      std::vector<double> y(x.size());
      launch(KERNEL(reduce_block<Sum>), {.blocks = 3, .threads = threads}, Span<const double>(span_of(x)), span_of(y), Sum{});
      size_t wrong = 0;
      for (size_t i = 0; i < y.size(); ++i)
        wrong += std::abs(y[i] - sums[i / static_cast<size_t>(threads)]) > 1e-12 ||
                 y[i] != y[i / static_cast<size_t>(threads) * static_cast<size_t>(threads)];
      CHECK(wrong == 0);
      launch(KERNEL(reduce_block<Max>), {.blocks = 3, .threads = threads}, Span<const double>(span_of(x)), span_of(y), Max{});
      for (size_t i = 0; i < y.size(); ++i) wrong += y[i] != maxima[i / static_cast<size_t>(threads)];
      CHECK(wrong == 0);
    });
  }
}

TEMPLATE_TEST_CASE("log-sum-exp of a block, also of infinities and NaN", "", float, double) {
  const double lowest = std::numeric_limits<TestType>::lowest(), highest = std::numeric_limits<TestType>::max();
  auto expect = [](const std::vector<double>& v) {
    double max = -kInfinity, sum = 0;
    for (const double a : v) {
      if (std::isnan(a)) return kNan;
      max = std::max(max, a);
    }
    if (std::isinf(max)) return max;
    for (const double a : v) sum += std::exp(a - max);
    return max + std::log(sum);
  };
  auto check = [&](const std::vector<double>& values, const char* what) {
    INFO(what);
    std::vector<TestType> x(values.begin(), values.end());
    const double expected = expect({x.begin(), x.end()});
    check_passes([&] {
      std::vector<TestType> y(96);
      launch(KERNEL(log_sum_block<TestType>), {.blocks = 1, .threads = 96}, Span<const TestType>(span_of(x)), span_of(y));
      for (const TestType v : y) {
        if (std::isnan(expected))
          CHECK(std::isnan(v));
        else if (std::isinf(expected))
          CHECK(v == static_cast<TestType>(expected));
        else
          CHECK(v == Approx(expected).epsilon(sizeof(TestType) == 4 ? 1e-6 : 1e-13));
      }
    });
  };
  for (const size_t n : {1u, 31u, 96u, 500u}) check(random_values(n, n), "random");
  check({}, "none");
  check(std::vector<double>(200, -kInfinity), "all -inf");
  auto x = random_values(200, 9);
  for (size_t i = 0; i < 200; i += 3) x[i] = -kInfinity;
  check(x, "some -inf");
  x[77] = lowest / 2;
  x[78] = highest / 2;
  check(x, "far apart");
  x[150] = kInfinity;
  check(x, "+inf");
  x[151] = kNan;
  check(x, "NaN after +inf");
  x[150] = 0;
  check(x, "NaN");
  x = std::vector<double>(200, -kInfinity);
  x[64] = kNan;
  check(x, "NaN among -inf");
}

TEST_CASE("a cluster reduces through its peers' memory") {
  for (const int cluster : {1, 2, 8}) {
    auto x = random_values(static_cast<size_t>(2 * cluster) * 64, 5);
    check_passes([&] {
      std::vector<double> y(x.size());
      launch(KERNEL(sum_cluster), {.blocks = 2 * cluster, .threads = 64, .cluster = cluster}, Span<const double>(span_of(x)), span_of(y));
      const size_t half = x.size() / 2;
      double sums[2] = {0, 0};
      for (size_t i = 0; i < x.size(); ++i) sums[i / half] += x[i];
      size_t wrong = 0;
      for (size_t i = 0; i < y.size(); ++i) wrong += std::abs(y[i] - sums[i / half]) > 1e-12;
      CHECK(wrong == 0);
    });
  }
}

TEST_CASE("warp operations") {
  check_passes([] {
    std::vector<int32_t> y(6 * 64);
    launch(KERNEL(shuffle_all), {.blocks = 1, .threads = 64}, span_of(y));
    size_t wrong = 0;
    for (int t = 0; t < 64; ++t) {
      const int lane = t % 32;
      const int32_t* got = y.data() + 6 * t;
      wrong += got[0] != (lane + 5) % 32 || got[1] != (lane ^ 9) || got[2] != (lane + 3 < 32 ? lane + 3 : lane) || got[4] != (t >= 32) || got[5] != 0;
      for (int l = 0; l < 32; ++l) wrong += (static_cast<uint32_t>(got[3]) >> l & 1) != (l % 3 == 0);
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("tensor core products agree with plain ones") {
  check_product(KERNEL(product_tf32), 8, 10, false);
  check_product(KERNEL(product_bf16), 16, 7, true);
  auto a = random_values(8 * 4, 1), b = random_values(4 * 8, 2);
  check_passes([&] {
    const auto c0 = random_values(64, 3);
    auto c = c0;
    launch(KERNEL(product_f64), {.blocks = 1, .threads = 32}, Span<const double>(span_of(a)), Span<const double>(span_of(b)), span_of(c));
    for (size_t i = 0; i < 8; ++i)
      for (size_t j = 0; j < 8; ++j) {
        double sum = c0[i * 8 + j];
        for (size_t k = 0; k < 4; ++k) sum += a[i * 4 + k] * b[k * 8 + j];
        CHECK(c[i * 8 + j] == Approx(sum).epsilon(1e-14));
      }
  });
}

TEST_CASE("roundings") {
  auto bf16 = [](float x) { return pack_bf16(x, 0) & 0xffff; };
  auto value = [](uint32_t bits) { return std::bit_cast<float>(bits); };
  // The nearest neighbour, found by comparing distances; ties to even (bf16) or away from zero (tf32).
  std::mt19937 random(1);
  size_t wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    const uint32_t bits = random();
    const float x = value(bits);
    if (!std::isfinite(x)) continue;
    auto check = [&](uint32_t rounded, int dropped, bool even) {
      const uint32_t below = bits >> dropped << dropped, above = below + (1u << dropped);
      const double down = std::abs(static_cast<double>(x) - value(below)),
                   full = std::ldexp(1.0, dropped) * std::abs(static_cast<double>(value(below | 1)) - value(below));
      const bool tie = 2 * down == full, up = tie ? !even || (below >> dropped & 1) : 2 * down > full;
      wrong += rounded != (up ? above : below);
    };
    check(bf16(x) << 16, 16, true);
    check(round_tf32(x), 13, false);
  }
  CHECK(wrong == 0);
  CHECK(bf16(1.0f) == 0x3f80);
  CHECK(bf16(value(0x3f808000)) == 0x3f80);  // a tie: to even
  CHECK(bf16(value(0x3f818000)) == 0x3f82);
  CHECK(round_tf32(value(0x3f801000)) == 0x3f802000);  // a tie: away from zero
  CHECK(round_tf32(value(0xbf801000)) == 0xbf802000);
  CHECK(pack_bf16(1.0f, -2.0f) == 0xc0003f80);
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(bf16(inf) == 0x7f80);
  CHECK(bf16(-inf) == 0xff80);
  CHECK(bf16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(std::isnan(value(bf16(nan) << 16)));
  CHECK(std::isnan(value(round_tf32(value(0x7f800001)) & ~0x1fffu)));  // the bits that tensor cores ignore
  CHECK(round_tf32(-inf) == 0xff800000);
  CHECK(exp2_fast(3.0f) == 8.0f);
  CHECK(exp2_fast(-126.5f) == 0.0f);
  CHECK(exp2_fast(-inf) == 0.0f);
  CHECK(std::isnan(exp2_fast(nan)));
}
