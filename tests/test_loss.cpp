// Losses: ignored rows, both forms of label smoothing, large logits, refused labels, and bits that do not depend on threads.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/parallel.h"
#include "core/rng.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

struct Result {
  double loss;
  std::vector<double> gradient;
};

template <class T = double>
Result run(const Shape& shape, const std::vector<T>& logits, const std::vector<int32_t>& labels, double smoothing = 0,
           Smoothing form = Smoothing::torch, int64_t ignore_index = -100) {
  const Tensor x = Tensor::of<T>(shape, logits), q = Tensor::of<int32_t>({static_cast<int64_t>(labels.size())}, labels);
  Tape tape(dtype_of<T>());
  const Var in = tape.variable(x);
  const Var loss = cross_entropy(in, tape.leaf(q), smoothing, form, ignore_index);
  tape.backward(loss);
  return {loss.span<T>()[0], to_doubles(tape.grad(in))};
}

constexpr double kLn2 = 0.69314718055994530942;

}  // namespace

TEST_CASE("fault 56: ignored rows count neither above nor below the line") {
  const Result one = run({1, 2}, {0, 0}, {0});
  CHECK(one.loss == Approx(kLn2).epsilon(1e-15));
  CHECK(one.gradient == std::vector<double>{-0.5, 0.5});
  for (double smoothing : {0.0, 0.1})
    for (Smoothing form : {Smoothing::torch, Smoothing::fairseq}) {
      const Result alone = run({1, 2}, {1, 3}, {0}, smoothing, form);
      const Result padded = run({3, 2}, {9, NAN, 1, 3, INFINITY, 5}, {-100, 0, -100}, smoothing, form);
      CHECK(padded.loss == alone.loss);
      CHECK(padded.gradient == std::vector<double>{0, 0, alone.gradient[0], alone.gradient[1], 0, 0});
      const Result none = run({2, 2}, {3, 4, 5, 6}, {1, 1}, smoothing, form, 1);
      CHECK(none.loss == 0);
      CHECK(none.gradient == std::vector<double>(4, 0.0));
    }
  CHECK(run({0, 2}, {}, {}).loss == 0);
}

TEST_CASE("fault 56: the two forms of label smoothing spread epsilon over V and over V - 1 classes") {
  const std::vector<double> x{0.5, -1, 2};
  const double lse = std::log(std::exp(0.5) + std::exp(-1) + std::exp(2)), nll = lse - 0.5, all = 3 * lse - 1.5;
  CHECK(run({1, 3}, x, {0}, 0.3, Smoothing::torch).loss == Approx(0.7 * nll + 0.1 * all).epsilon(1e-14));
  // The other classes share 0.3, 0.15 each.
  CHECK(run({1, 3}, x, {0}, 0.3, Smoothing::fairseq).loss == Approx(0.7 * nll + 0.15 * (all - nll)).epsilon(1e-14));
  CHECK(run({1, 1}, {4}, {0}, 0.3, Smoothing::fairseq).loss == 0);
}

TEST_CASE("cross entropy of large logits is finite and keeps its digits") {
  const Result r = run<float>({2, 2}, {40000, 40000, 3e38f, -3e38f}, {0, 0});
  CHECK(r.loss == Approx(kLn2 / 2).epsilon(1e-6));
  CHECK(r.gradient == std::vector<double>{-0.25, 0.25, 0, 0});
  const double inf = INFINITY;
  CHECK(run({1, 3}, {0, 0, -inf}, {0}).loss == Approx(kLn2));  // an impossible class that nobody asks for
  CHECK(run({1, 3}, {0, 0, -inf}, {0}).gradient == std::vector<double>{-0.5, 0.5, 0});
  CHECK(run({1, 2}, {0, -inf}, {1}).loss == inf);
}

TEST_CASE("labels out of range are refused with row, label and number of classes") {
  CHECK_THROWS_WITH(run({3, 4}, std::vector<double>(12), {0, 4, 1}),
                    "cross_entropy: label 4 at position (1) must lie in 0..3 of the 4 classes of (3,4), got (3)");
  CHECK_THROWS_WITH(run({1, 4}, std::vector<double>(4), {-1}), Catch::StartsWith("cross_entropy: label -1 at position (0)"));
  CHECK_THROWS_WITH(run({1, 4}, std::vector<double>(4), {-100}, 0, Smoothing::torch, 0), Catch::Contains("label -100"));
  const Tensor x({1, 4}, DType::f64), q = Tensor::of<int32_t>({1}, {4});
  Tape tape(DType::f64);
  CHECK_THROWS_WITH(nll(tape.leaf(x), tape.leaf(q)), Catch::StartsWith("nll: label 4 at position (0)"));
  CHECK_THROWS_AS(cross_entropy(tape.leaf(x), Var{}), Error);
  CHECK_THROWS_WITH(run({1, 2}, {0, 0}, {0}, 1.5), "cross_entropy: smoothing must lie in 0..1, got 1.5");
}

TEST_CASE("nll of log-probabilities and mse") {
  const Tensor logp = Tensor::of<double>({3, 2}, {-1, -2, -3, -4, -5, -6}), q = Tensor::of<int32_t>({3}, {1, -100, 0});
  Tape tape(DType::f64);
  const Var x = tape.variable(logp);
  const Var loss = nll(x, tape.leaf(q));
  CHECK(loss.span<double>()[0] == 3.5);
  tape.backward(loss);
  CHECK(to_doubles(tape.grad(x)) == std::vector<double>{0, -0.5, 0, 0, -0.5, 0});
  tape.reset();
  const Var a = tape.leaf(logp);
  CHECK(mse(a, scale_shift(a, 1, 2)).span<double>()[0] == 4);
}

TEST_CASE("losses give the same bits for any number of threads") {
  const int before = threads();
  RandomStream random(1, "test_loss");
  const Shape shape{97, 301};
  std::vector<float> x(static_cast<size_t>(shape.count()));
  for (float& v : x) v = static_cast<float>(random.uniform(-3, 3));
  std::vector<int32_t> labels(97);
  for (int32_t& v : labels) v = static_cast<int32_t>(random.below(301));
  auto squares = [&] {
    const Tensor value = Tensor::of<float>(shape, x), zero(shape);
    Tape tape;
    return mse(tape.leaf(value), tape.leaf(zero)).span<float>()[0];
  };
  set_threads(1);
  const Result one = run<float>(shape, x, labels, 0.1);
  const float square = squares();
  for (int n : {2, 3, 7}) {
    set_threads(n);
    const Result many = run<float>(shape, x, labels, 0.1);
    CHECK(many.loss == one.loss);
    CHECK(many.gradient == one.gradient);
    CHECK(squares() == square);
  }
  set_threads(before);
}
