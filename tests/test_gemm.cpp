// Matrix products against sums in double precision: every transposition, sizes around those of tiles, panels and blocks, row lengths beyond
// the rows, what is added to, and what must not be touched.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "core/parallel.h"
#include "core/rng.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/library_gemm.h"

using namespace sinkgrad;

namespace {

struct Sizes {
  int64_t m, n, k;
};

template <class T>
std::vector<T> random_values(int64_t count, const char* name) {
  std::vector<T> values(static_cast<size_t>(count));
  RandomStream random(1, name);
  for (T& v : values) v = static_cast<T>(random.uniform(-1, 1));
  return values;
}

/// The product, with every row of A, B and C three elements longer than what is used of it. Those of A and B, and a row after their last, are NaN.
template <class T>
struct Product {
  Product(const Sizes& sizes, bool transpose_a, bool transpose_b) : s(sizes), ta(transpose_a), tb(transpose_b) {
    poison(a, lda);
    poison(b, ldb);
  }

  std::vector<T> run(T alpha, T beta, bool with_bias) const {
    std::vector<T> result = c;
    const T* with = with_bias ? bias.data() : nullptr;
    if (by_library)
      cpu::library_gemm(ta, tb, s.m, s.n, s.k, alpha, a.data(), lda, b.data(), ldb, beta, result.data(), ldc, with);
    else
      cpu::gemm(ta, tb, s.m, s.n, s.k, alpha, a.data(), lda, b.data(), ldb, beta, result.data(), ldc, precision, with);
    return result;
  }
  /// The largest error relative to the sum of the magnitudes of the terms, in units of the type's precision; infinite where an element outside
  /// of C has changed.
  double error(T alpha, T beta, bool with_bias) const {
    const std::vector<T> result = run(alpha, beta, with_bias);
    double worst = 0;
    for (int64_t i = 0; i < s.m; ++i)
      for (int64_t j = 0; j < ldc; ++j) {
        const auto at = static_cast<size_t>(i * ldc + j);
        if (j >= s.n) {
          if (result[at] != c[at]) return INFINITY;
          continue;
        }
        double sum = double{beta} * c[at], size = std::abs(sum);
        if (with_bias) sum += bias[static_cast<size_t>(j)], size += std::abs(bias[static_cast<size_t>(j)]);
        for (int64_t l = 0; l < s.k; ++l) {
          const double term = double{alpha} * operand(a[static_cast<size_t>(ta ? l * lda + i : i * lda + l)]) *
                              operand(b[static_cast<size_t>(tb ? j * ldb + l : l * ldb + j)]);
          sum += term;
          size += std::abs(term);
        }
        if (!std::isfinite(result[at])) return INFINITY;
        if (size > 0 || result[at] != 0) worst = std::max(worst, std::abs(result[at] - sum) / size);
      }
    return worst / std::numeric_limits<T>::epsilon();
  }

  static void poison(std::vector<T>& x, int64_t row) {
    for (size_t i = 0; i < x.size(); ++i)
      if (static_cast<int64_t>(i) % row >= row - 3) x[i] = NAN;
    x.resize(x.size() + static_cast<size_t>(row), NAN);
  }

  /// As the product reads it: bf16 keeps 8 bits of the mantissa.
  double operand(T x) const {
    if (precision != Precision::bf16 || x == 0) return x;
    const double unit = std::ldexp(1.0, std::ilogb(x) - 7);
    return std::nearbyint(x / unit) * unit;
  }

  Sizes s;
  Precision precision = Precision::full;
  bool ta, tb, by_library = false;  // small ones are only computed by libraries when asked
  int64_t lda = (ta ? s.m : s.k) + 3, ldb = (tb ? s.k : s.n) + 3, ldc = s.n + 3;
  std::vector<T> a = random_values<T>((ta ? s.k : s.m) * lda, "a"), b = random_values<T>((tb ? s.n : s.k) * ldb, "b"),
                 c = random_values<T>(s.m * ldc, "c"), bias = random_values<T>(s.n, "bias");
};

const std::vector<Sizes> kSizes = {{1, 1, 1},  {1, 17, 5},  {5, 1, 3},    {2, 3, 0},    {0, 4, 2},     {4, 0, 2},     {6, 16, 8},
                                   {7, 15, 9}, {13, 33, 7}, {12, 32, 64}, {97, 65, 31}, {24, 8, 1025}, {11, 40, 257}, {300, 70, 40}};

template <class T>
void check_all(bool by_library, Precision precision = Precision::full) {
  for (const Sizes& s : kSizes)
    if (!by_library || s.m * s.n * s.k > 0)
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          INFO((by_library ? "library, " : "") << "m " << s.m << " n " << s.n << " k " << s.k << " transposed " << ta << " " << tb << ", "
                                               << sizeof(T) << " bytes");
          Product<T> p(s, ta, tb);
          p.by_library = by_library;
          p.precision = precision;
          CHECK(p.error(T(1), T(0), false) < 4);
          CHECK(p.error(T(0.5), T(1), false) < 4);
          CHECK(p.error(T(1), T(0), true) < 4);
          CHECK(p.error(T(1), T(-0.25), true) < 4);
        }
}

}  // namespace

TEST_CASE("products, with a bias and what was there, in float32 and float64") {
  check_all<float>(false);
  check_all<double>(false);
}

TEST_CASE("products of operands rounded to bf16 have sums in float32") { check_all<float>(false, Precision::bf16); }

TEST_CASE("NaN and infinity pass through products in bf16") {
  for (const float x : {NAN, INFINITY, -INFINITY}) {
    Product<float> p({9, 21, 13}, false, true);
    p.precision = Precision::bf16;
    p.a[static_cast<size_t>(2 * p.lda + 12)] = x;
    std::fill(p.b.begin(), p.b.end(), 1.0f);
    const std::vector<float> found = p.run(1, 0, false);
    for (int64_t i = 0; i < p.s.m; ++i)
      for (int64_t j = 0; j < p.s.n; ++j) {
        const float value = found[static_cast<size_t>(i * p.ldc + j)];
        if (i != 2)
          REQUIRE(std::isfinite(value));
        else if (std::isnan(x))
          REQUIRE(std::isnan(value));
        else
          REQUIRE(value == x);
      }
  }
}

TEST_CASE("the libraries' products, in our stripes") {
  check_all<float>(true);
  check_all<double>(true);
}

TEST_CASE("a product with beta 0 does not read C") {
  Product<float> p({9, 21, 12}, true, false);
  const std::vector<float> expected = p.run(1, 0, true);
  for (int64_t i = 0; i < p.s.m; ++i) std::fill_n(p.c.begin() + i * p.ldc, p.s.n, NAN);
  const std::vector<float> found = p.run(1, 0, true);
  for (int64_t i = 0; i < p.s.m; ++i)
    for (int64_t j = 0; j < p.s.n; ++j) REQUIRE(found[static_cast<size_t>(i * p.ldc + j)] == expected[static_cast<size_t>(i * p.ldc + j)]);
}

TEST_CASE("products give the same bits for any number of threads") {
  const int before = threads();
  for (const Sizes& s : {Sizes{700, 130, 90}, Sizes{64, 96, 3000}, Sizes{700, 700, 90}})
    for (const int way : {0, 1, 2, 3}) {
      const bool ta = way % 2;
      Product<float> p(s, ta, !ta);
      p.by_library = way >= 2;
      set_threads(1);
      const std::vector<float> one = p.run(1, 1, true);
      for (const int n : {2, 5}) {
        set_threads(n);
        CHECK(p.run(1, 1, true) == one);
      }
    }
  set_threads(before);
}
