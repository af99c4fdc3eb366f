// Values and gradients of the binary, unary and reducing ops and of logsumexp, against numbers worked out by hand or by plain loops.
// tests/gradcheck.cpp checks the same ops against differences; here are the cases that differences cannot see: ties, infinities, errors.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "core/parallel.h"
#include "core/rng.h"
#include "ops/broadcast.h"
#include "ops/ops.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

Tensor random_tensor(const Shape& shape, const char* name, double low = 0.5, double high = 2, DType dtype = DType::f64) {
  Tensor t(shape, dtype);
  RandomStream random(3, name);
  for (int64_t i = 0; i < t.count(); ++i) {
    const double v = random.uniform(low, high);
    if (dtype == DType::f64)
      t.span<double>()[static_cast<size_t>(i)] = v;
    else
      t.span<float>()[static_cast<size_t>(i)] = static_cast<float>(v);
  }
  return t;
}

struct Result {
  std::vector<double> y, dx;
};

/// f(x) and its gradient against `cotangent` (ones when empty), in f64.
Result evaluate(const std::vector<double>& x, const std::function<Var(Var)>& f, std::vector<double> cotangent = {}, Shape shape = {}) {
  if (shape.rank() == 0) shape = {static_cast<int64_t>(x.size())};
  Tape tape(DType::f64);
  const Tensor value = Tensor::of(shape, x);
  const Var in = tape.variable(value), y = f(in);
  if (cotangent.empty()) cotangent.assign(static_cast<size_t>(y.shape().count()), 1.0);
  tape.backward(y, Tensor::of(y.shape(), cotangent));
  return {to_doubles(tape.value(y)), to_doubles(tape.grad(in))};
}

void require_close(const std::vector<double>& got, const std::vector<double>& expected, double tolerance = 1e-12) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("element " << i << ": got " << got[i] << ", expected " << expected[i]);
    REQUIRE((got[i] == expected[i] || std::abs(got[i] - expected[i]) <= tolerance * std::max(1.0, std::abs(expected[i]))));
  }
}

struct BinaryOp {
  const char* name;
  Var (*op)(Var, Var);
  double (*value)(double, double);
  double (*grad_a)(double, double);
  double (*grad_b)(double, double);
};

const BinaryOp kBinaryOps[] = {
    {"add", add, [](double a, double b) { return a + b; }, [](double, double) { return 1.0; }, [](double, double) { return 1.0; }},
    {"sub", sub, [](double a, double b) { return a - b; }, [](double, double) { return 1.0; }, [](double, double) { return -1.0; }},
    {"mul", mul, [](double a, double b) { return a * b; }, [](double, double b) { return b; }, [](double a, double) { return a; }},
    {"div", div, [](double a, double b) { return a / b; }, [](double, double b) { return 1 / b; }, [](double a, double b) { return -a / (b * b); }},
};

}  // namespace

TEST_CASE("the gradient of a broadcast operand has its shape and is summed (fault 30)") {
  struct Pair {
    Shape a, b, out;
  };
  const Pair pairs[] = {{{1}, {5, 4}, {5, 4}},
                        {{4, 1}, {1, 4}, {4, 4}},
                        {{5, 2, 1}, {5, 1, 2}, {5, 2, 2}},
                        {{3, 1}, {1, 3}, {3, 3}},
                        {{}, {2, 3}, {2, 3}},
                        {{2, 3}, {}, {2, 3}},
                        {{2, 3, 5}, {5}, {2, 3, 5}},
                        {{5}, {2, 3, 5}, {2, 3, 5}},
                        {{2, 1, 3, 1}, {4, 1, 2}, {2, 4, 3, 2}},
                        {{40, 70}, {70}, {40, 70}},
                        {{3000}, {1}, {3000}},
                        {{2, 1500}, {2, 1}, {2, 1500}},
                        {{0, 3}, {3}, {0, 3}},
                        {{1, 1}, {}, {1, 1}},
                        {{3, 2}, {3, 2}, {3, 2}},
                        {{2, 1, 2, 1, 2, 1}, {1, 3, 1, 3, 1, 3}, {2, 3, 2, 3, 2, 3}}};
  for (const BinaryOp& op : kBinaryOps)
    for (const Pair& p : pairs) {
      INFO(op.name << " " << p.a << " " << p.b);
      Tape tape(DType::f64);
      const Tensor a = random_tensor(p.a, "a"), b = random_tensor(p.b, "b"), g = random_tensor(p.out, "g", -1, 1);
      const Var va = tape.variable(a), vb = tape.variable(b), y = op.op(va, vb);
      REQUIRE(y.shape() == p.out);
      tape.backward(y, g);
      REQUIRE(tape.grad(va).shape == p.a);
      REQUIRE(tape.grad(vb).shape == p.b);

      std::vector<double> value, grad_a(static_cast<size_t>(a.count())), grad_b(static_cast<size_t>(b.count()));
      const BroadcastStrides at_a(p.a, p.out), at_b(p.b, p.out);
      for (int64_t i = 0; i < p.out.count(); ++i) {
        const auto ia = static_cast<size_t>(at_a.offset(i)), ib = static_cast<size_t>(at_b.offset(i));
        const double x = a.span<double>()[ia], z = b.span<double>()[ib], w = g.span<double>()[static_cast<size_t>(i)];
        value.push_back(op.value(x, z));
        grad_a[ia] += w * op.grad_a(x, z);
        grad_b[ib] += w * op.grad_b(x, z);
      }
      require_close(to_doubles(tape.value(y)), value);
      require_close(to_doubles(tape.grad(va)), grad_a);
      require_close(to_doubles(tape.grad(vb)), grad_b);
    }
}

TEST_CASE("shapes that numpy cannot broadcast are refused by name (fault 30)") {
  for (const BinaryOp& op : kBinaryOps) {
    Tape tape(DType::f64);
    const Tensor a({5, 2, 1}, DType::f64), b({5, 2}, DType::f64), integers({5, 2}, DType::i32);
    const std::string name = op.name;
    REQUIRE_THROWS_WITH(op.op(tape.leaf(a), tape.leaf(b)), Contains(name) && Contains("(5,2,1)") && Contains("(5,2)"));
    REQUIRE_THROWS_WITH(op.op(tape.leaf(b), tape.leaf(integers)), Contains(name) && Contains("i32"));
  }
}

TEST_CASE("an op whose two inputs are the same value receives both gradients") {
  require_close(evaluate({-3, 0.5}, [](Var x) { return mul(x, x); }).dx, {-6, 1});
  require_close(evaluate({-3, 0.5}, [](Var x) { return add(x, x); }).dx, {2, 2});
  require_close(evaluate({-3, 0.5}, [](Var x) { return sub(x, x); }).dx, {0, 0});
  require_close(evaluate({-3, 0.5}, [](Var x) { return div(x, x); }).dx, {0, 0});
  require_close(evaluate({2}, [](Var x) { return mul(x, mul(x, x)); }).dx, {12});
}

TEST_CASE("broadcast gradients have the same bits on any number of threads") {
  const int before = threads();
  for (const Shape& shape : {Shape{}, Shape{300}, Shape{900, 1}}) {
    std::vector<std::vector<float>> runs;
    for (int n : {1, 2, 3}) {
      set_threads(n);
      Tape tape;
      const Tensor x = random_tensor({900, 300}, "x", -1, 1, DType::f32), s = random_tensor(shape, "s", -1, 1, DType::f32);
      const Var small = tape.variable(s), y = mul(tape.leaf(x), small);
      tape.backward(y, random_tensor({900, 300}, "g", -1, 1, DType::f32));
      const float* g = tape.grad(small).as<float>();
      runs.emplace_back(g, g + shape.count());
    }
    for (size_t i = 1; i < runs.size(); ++i) REQUIRE(!std::memcmp(runs[0].data(), runs[i].data(), runs[0].size() * sizeof(float)));
  }
  set_threads(before);
}

TEST_CASE("unary functions equal the C library, in f64 and in f32") {
  struct Unary {
    const char* name;
    Var (*op)(Var);
    double (*value)(double);
    double low, high;
  };
  const Unary table[] = {{"neg", neg, [](double x) { return -x; }, -50, 50},
                         {"exp", exp, [](double x) { return std::exp(x); }, -80, 80},
                         {"log", log, [](double x) { return std::log(x); }, 1e-6, 50},
                         {"sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0, 50},
                         {"tanh", tanh, [](double x) { return std::tanh(x); }, -30, 30},
                         {"sigmoid", sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, -80, 80},
                         {"relu", relu, [](double x) { return x > 0 ? x : 0; }, -5, 5},
                         {"gelu", gelu, [](double x) { return x * std::erfc(-x / std::sqrt(2.0)) / 2; }, -12, 12}};
  for (const Unary& u : table)
    for (DType dtype : {DType::f32, DType::f64}) {
      Tape tape(dtype);
      const Tensor x = random_tensor({3001}, u.name, u.low, u.high, dtype);
      const auto in = to_doubles(x.view()), out = to_doubles(tape.value(u.op(tape.leaf(x))));
      for (size_t i = 0; i < in.size(); ++i) {
        INFO(u.name << " of " << in[i]);
        // Relative to the value; 2e-6 because the tails of gelu take exp of a rounded argument.
        REQUIRE(std::abs(out[i] - u.value(in[i])) <= (dtype == DType::f32 ? 2e-6 : 1e-14) * std::max(std::abs(u.value(in[i])), 1e-3));
      }
    }
}

TEST_CASE("unary functions at special points") {
  require_close(evaluate({-1, 0, 2}, relu).dx, {0, 0, 1});
  const auto leaky = evaluate({-2, 0, 3}, [](Var x) { return leaky_relu(x, 0.25); });
  require_close(leaky.y, {-0.5, 0, 3});
  require_close(leaky.dx, {0.25, 0.25, 1});
  require_close(evaluate({-1e4, 1e4}, sigmoid).y, {0, 1});
  require_close(evaluate({-1e4, 1e4}, sigmoid).dx, {0, 0});
  require_close(evaluate({-1e4, 1e4}, sinkgrad::tanh).dx, {0, 0});
  require_close(evaluate({-kInfinity, 800}, sinkgrad::exp).y, {0, kInfinity});
  require_close(evaluate({0, 4}, sinkgrad::log).y, {-kInfinity, std::log(4.0)});
  require_close(evaluate({0, 4}, sinkgrad::log).dx, {kInfinity, 0.25});
  require_close(evaluate({0, 4}, sinkgrad::sqrt).dx, {kInfinity, 0.25});
  REQUIRE(std::isnan(evaluate({-1}, sinkgrad::log).y[0]));
  for (auto op : {relu, gelu, sinkgrad::exp, sinkgrad::tanh}) REQUIRE(std::isnan(evaluate({kNaN}, op).y[0]));
  require_close(evaluate({1, 2}, [](Var x) { return scale_shift(x, -3, 0.5); }).y, {-2.5, -5.5});
  require_close(evaluate({1, 2}, [](Var x) { return scale_shift(x, -3, 0.5); }).dx, {-3, -3});
}

TEST_CASE("reductions over any axes") {
  std::vector<double> x(24);
  for (size_t i = 0; i < 24; ++i) x[i] = static_cast<double>((i * 7) % 24);
  auto at = [&](int i, int j, int k) { return x[static_cast<size_t>((i * 3 + j) * 4 + k)]; };
  std::vector<double> total(3, 0.0), largest(3, -kInfinity);
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) {
        total[static_cast<size_t>(j)] += at(i, j, k);
        largest[static_cast<size_t>(j)] = std::max(largest[static_cast<size_t>(j)], at(i, j, k));
      }
  const std::vector<double> g = {1, 10, 100};
  const auto s = evaluate(x,
                          [](Var v) {
                            return sum(v, {0, -1});
                          },
                          g, {2, 3, 4}),
             m = evaluate(x,
                          [](Var v) {
                            return mean(v, {2, 0});
                          },
                          g, {2, 3, 4}),
             t = evaluate(x,
                          [](Var v) {
                            return max(v, {0, 2});
                          },
                          g, {2, 3, 4});
  require_close(s.y, total);
  require_close(m.y, {total[0] / 8, total[1] / 8, total[2] / 8});
  require_close(t.y, largest);
  for (int i = 0; i < 24; ++i) {
    const auto j = static_cast<size_t>(i / 4 % 3), k = static_cast<size_t>(i);
    REQUIRE(s.dx[k] == g[j]);
    REQUIRE(m.dx[k] == g[j] / 8);
    REQUIRE(t.dx[k] == (x[k] == largest[j] ? g[j] : 0));
  }

  Tape tape(DType::f64);
  const Tensor value({2, 3, 4}, DType::f64);
  const Var v = tape.leaf(value);
  REQUIRE(sum(v).shape() == Shape{});
  REQUIRE(sum(v, {1}).shape() == Shape{2, 4});
  REQUIRE(sum(v, {1}, true).shape() == Shape{2, 1, 4});
  REQUIRE(max(v, {}, true).shape() == Shape{1, 1, 1});
  REQUIRE_THROWS_WITH(sum(v, {3}), Contains("sum") && Contains("axis 3") && Contains("(2,3,4)"));
  REQUIRE_THROWS_WITH(max(v, {1, -2}), Contains("max") && Contains("twice"));
}

TEST_CASE("the gradient of max goes to the first maximal element, and NaN is not lost") {
  require_close(evaluate({1, 5, 5, 2}, [](Var x) { return max(x); }).dx, {0, 1, 0, 0});
  require_close(evaluate({3, 7, 7, 3}, [](Var x) { return max(x, {0}); }, {1, 10}, {2, 2}).dx, {0, 10, 1, 0});
  require_close(evaluate({2, 2, 2, 2}, [](Var x) { return max(x, {0}); }, {1, 10}, {2, 2}).dx, {1, 10, 0, 0});
  const auto lowest = evaluate({-kInfinity, -kInfinity}, [](Var x) { return max(x); });
  require_close(lowest.y, {-kInfinity});
  require_close(lowest.dx, {1, 0});
  const auto nan = evaluate({1, kNaN, 3}, [](Var x) { return max(x); });
  REQUIRE(std::isnan(nan.y[0]));
  require_close(nan.dx, {0, 1, 0});
}

TEST_CASE("reductions of no elements") {
  Tape tape(DType::f64);
  const Tensor empty({3, 0}, DType::f64);
  const Var x = tape.variable(empty), total = sum(x, {1});
  require_close(to_doubles(tape.value(total)), {0, 0, 0});
  REQUIRE(mean(x, {0}).shape() == Shape{0});
  REQUIRE_THROWS_WITH(mean(x), Contains("mean") && Contains("(3,0)"));
  REQUIRE_THROWS_AS(mean(x, {1}), ShapeError);
  REQUIRE_THROWS_AS(max(x, {1}), ShapeError);
}

TEST_CASE("logsumexp of infinities and of nothing (fault 33)") {
  auto lse = [](Var x) { return logsumexp(x); };
  const double inf = kInfinity;
  struct Line {
    std::vector<double> x;
    double y;
    std::vector<double> dx;
  };
  for (const Line& line : std::vector<Line>{{{-inf, -inf}, -inf, {0, 0}},
                                            {{-inf, 2}, 2, {0, 1}},
                                            {{inf, 1}, inf, {1, 0}},
                                            {{inf, -inf, inf}, inf, {0.5, 0, 0.5}},
                                            {{1000, 1000}, 1000 + std::log(2.0), {0.5, 0.5}},
                                            {{-1000, -1000}, -1000 + std::log(2.0), {0.5, 0.5}},
                                            {{-1e300, 1e300}, 1e300, {0, 1}}}) {
    const auto r = evaluate(line.x, lse);
    require_close(r.y, {line.y});
    require_close(r.dx, line.dx);
    // Down a column, and next to an ordinary line, the numbers are the same.
    std::vector<double> two;
    for (double v : line.x) two.insert(two.end(), {v, 0.25});
    const auto n = static_cast<int64_t>(line.x.size());
    const auto c = evaluate(two, [](Var x) { return logsumexp(x, 0); }, {1, 1}, {n, 2});
    require_close(c.y, {line.y, 0.25 + std::log(static_cast<double>(n))});
    for (size_t k = 0; k < line.dx.size(); ++k) require_close({c.dx[2 * k], c.dx[2 * k + 1]}, {line.dx[k], 1 / static_cast<double>(n)});
  }
  for (const std::vector<double>& x : {std::vector<double>{kNaN, 1}, {kNaN, -inf}, {-inf, kNaN}, {1, kNaN, inf}})
    REQUIRE(std::isnan(evaluate(x, lse).y[0]));

  Tape tape(DType::f64);
  const Tensor empty({2, 0}, DType::f64);
  const Var x = tape.variable(empty), y = logsumexp(x);
  require_close(to_doubles(tape.value(y)), {-inf, -inf});
  tape.backward(y, Tensor::of<double>({2, 1}, {1, 1}));
  REQUIRE(tape.grad(x).shape == Shape{2, 0});
}

/// The largest error of f over x, in units in the last place of the true value; both infinite or both NaN count as equal.
template <class T, class Op, class Truth>
double largest_error(const std::vector<T>& x, Op f, Truth truth) {
  Tape tape(sizeof(T) == 4 ? DType::f32 : DType::f64);
  const auto n = static_cast<int64_t>(x.size());
  const Tensor values = Tensor::of<T>({n}, x);
  const T* y = tape.value(f(tape.leaf(values))).template as<T>();
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const long double wanted = truth(static_cast<long double>(x[i]));
    if ((std::isnan(y[i]) && std::isnan(wanted)) || static_cast<T>(wanted) == y[i]) continue;
    const T size = static_cast<T>(std::abs(wanted));
    const T unit = std::nextafter(size, std::numeric_limits<T>::infinity()) - size;
    worst = std::max(worst, static_cast<double>(std::abs(static_cast<long double>(y[i]) - wanted) / unit));
    if (!(worst < 1e6)) UNSCOPED_INFO("at " << x[i] << " got " << y[i] << ", the truth is " << static_cast<double>(wanted));
  }
  return worst;
}

TEMPLATE_TEST_CASE("exp, log and tanh are exact to a few units in the last place", "", float, double) {
  using T = TestType;
  using Limits = std::numeric_limits<T>;
  RandomStream random(5, "ulps");
  std::vector<T> any, positive{Limits::denorm_min(), Limits::min(), Limits::max(), 1, 0, Limits::infinity(), Limits::quiet_NaN(), -1};
  for (int i = 0; i < 20000; ++i) {
    const T size = std::exp2(static_cast<T>(random.uniform(i % 2 ? -40 : -3, 7)));
    any.push_back(i % 3 ? size : -size);
    positive.push_back(i % 4 ? size : std::exp2(static_cast<T>(random.uniform(Limits::min_exponent - 20, Limits::max_exponent - 1))));
    positive.push_back(1 + static_cast<T>(random.uniform(-1e-3, 1e-3)));
  }
  std::vector<T> edges = any;
  edges.insert(edges.end(), {T(0), T(-0.0), Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), Limits::min(), T(1e30), T(-1e30)});
  CHECK(largest_error(positive, sinkgrad::log, [](long double x) { return std::log(x); }) <= 2);
  CHECK(largest_error(edges, sinkgrad::tanh, [](long double x) { return std::tanh(x); }) <= 4);
  // exp flushes what is below the smallest normal number.
  CHECK(largest_error(edges, sinkgrad::exp, [](long double x) {
          const long double y = std::exp(x);
          return y < Limits::min() ? 0 : y;
        }) <= 2);
}

TEST_CASE("softmax does not lose a NaN among masked elements") {
  for (const size_t at : {size_t{0}, size_t{1}, size_t{20}, size_t{39}}) {
    std::vector<float> x(40, 1);
    std::vector<int32_t> hidden(40, 1);
    x[at] = NAN, hidden[at] = 0;
    Tape tape;
    const Tensor values = Tensor::of<float>({40}, x), mask = Tensor::of<int32_t>({40}, hidden);
    CHECK(std::isnan(tape.value(softmax(tape.leaf(values), -1, tape.leaf(mask))).as<float>()[at]));
  }
}

TEST_CASE("a masked softmax has gradient exactly 0 at the masked element (fault 17)") {
  for (DType dtype : {DType::f32, DType::f64}) {
    Tape tape(dtype);
    Tensor a({5}, dtype);
    if (dtype == DType::f32)
      std::fill_n(a.span<float>().begin(), 5, 1.0f);
    else
      std::fill_n(a.span<double>().begin(), 5, 1.0);
    const Tensor mask = Tensor::of<int32_t>({5}, {0, 1, 0, 0, 0});
    const Var x = tape.variable(a);
    tape.backward(slice(softmax(x, -1, tape.leaf(mask)), 0, 2, 3));
    const auto dx = to_doubles(tape.grad(x));
    require_close(dx, {-1.0 / 16, 0, 3.0 / 16, -1.0 / 16, -1.0 / 16}, dtype == DType::f32 ? 1e-7 : 1e-15);
    REQUIRE(dx[1] == 0);
  }
}
