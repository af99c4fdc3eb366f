// Elementwise, reducing and moving ops on the host executor where their samples cannot reach: ties and NaN, whose differences mean
// nothing; gradients added on aligned memory, 16 bytes at a time; more elements than one block takes; indices outside a table.
// The truth is the CPU, which was checked against differences.
#include <catch2/catch.hpp>
#include <cmath>
#include <deque>
#include <functional>

#include "core/numbers.h"
#include "core/tape.h"
#include "cuda/walk.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

using Function = std::function<Var(Tape&, Var)>;

std::deque<Tensor> g_alive;  // a tape holds views
Tensor& keep(Tensor t) { return g_alive.emplace_back(std::move(t)); }

/// Output and gradient of f(x).
std::array<Numbers, 2> run(const Function& f, const Shape& shape, const Numbers& x, DType dtype, Device device) {
  set_memory_poison(true);
  Tape tape(dtype, device);
  const Var a = tape.variable(keep(tensor_of(shape, dtype, x).to(device))), y = f(tape, a);
  Numbers w(static_cast<size_t>(y.shape().count()));
  for (size_t i = 0; i < w.size(); ++i) w[i] = 1 + static_cast<double>(i % 7);
  tape.backward(y, keep(tensor_of(y.shape(), dtype, w)));
  set_memory_poison(false);
  std::array result{to_doubles(tape.value(y), device), to_doubles(tape.grad(a), device)};
  g_alive.clear();
  return result;
}

/// Relative to a, but for values below 1/20 absolute: a saturated function's slope, 1 - y^2, has no more digits than y leaves it.
bool near(double a, double b, double bound) {
  return a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= bound * std::max(std::abs(a), 0.05);
}

void check_same(const char* name, const Function& f, const Shape& shape, const Numbers& x) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    INFO(name << " of " << shape.str() << " in " << name_of(dtype));
    const auto expected = run(f, shape, x, dtype, Device::cpu()), got = run(f, shape, x, dtype, Device::cuda());
    for (size_t part = 0; part < 2; ++part) {
      REQUIRE(got[part].size() == expected[part].size());
      size_t wrong = 0;
      for (size_t i = 0; i < got[part].size(); ++i) wrong += !near(expected[part][i], got[part][i], dtype == DType::f32 ? 2e-5 : 1e-12);
      INFO((part == 0 ? "output" : "gradient"));
      CHECK(wrong == 0);
    }
  }
}

Var indices(Tape& tape, const Shape& shape, const std::function<double(int64_t)>& value) {
  Numbers v(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < v.size(); ++i) v[i] = value(static_cast<int64_t>(i));
  return tape.leaf(keep(tensor_of(shape, DType::i32, v).to(tape.device())));
}

}  // namespace

TEST_CASE("ties, infinities and NaN are treated as the CPU does") {
  for (const int64_t n : {5, 40, 3000}) {
    const Shape shape{2, n, 3};
    Numbers x(static_cast<size_t>(shape.count()));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = i % 97 == 5 ? NAN : i % 31 == 7 ? -INFINITY : i % 89 == 3 ? INFINITY : static_cast<double>(i * 7919 % 11);
    check_same(
        "max over the middle", [](Tape&, Var a) { return max(a, {1}, false); }, shape, x);
    check_same(
        "max over all", [](Tape&, Var a) { return max(a, {}, false); }, shape, x);
    check_same(
        "max over the ends",
        [](Tape&, Var a) {
          return max(a, {0, 2}, true);
        },
        shape, x);
    check_same(
        "max_pool_set", [](Tape&, Var a) { return max_pool_set(a); }, shape, x);
    check_same(
        "max_pool_set, masked",
        [&](Tape& tape, Var a) {
          return max_pool_set(a, indices(tape, {2, n}, [](int64_t i) { return i * 3 % 5 < 2; }));
        },
        shape, x);
    for (const auto f : {neg, exp, log, sqrt, tanh, sigmoid, relu, gelu})
      check_same(
          "a function of one tensor", [=](Tape&, Var a) { return f(a); }, shape, x);
    for (const auto f : {add, sub, mul, div})
      check_same(
          "a function of a tensor and itself", [=](Tape&, Var a) { return f(a, a); }, shape, x);
  }
}

TEST_CASE("gradients are added 16 bytes at a time") {
  const Shape shape{6, 4, 8};
  Numbers x(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.25 + static_cast<double>(i * 7919 % 113) / 50;
  const std::pair<const char*, Function> functions[] = {
      {"gelu", [](Tape&, Var a) { return gelu(a); }},
      {"sum", [](Tape&, Var a) { return sum(a, {0}, false); }},
      {"mean", [](Tape&, Var a) { return mean(a, {1}, false); }},
      {"max", [](Tape&, Var a) { return max(a, {2}, false); }},
      {"transpose of rows", [](Tape&, Var a) { return transpose(a, 0, 1); }},
      {"transpose", [](Tape&, Var a) { return transpose(a, 1, 2); }},
      {"slice", [](Tape&, Var a) { return slice(a, 1, 1, 3); }},
      {"pad", [](Tape&, Var a) { return pad(a, 1, 1, 2, 3); }},
      {"concat",
       [](Tape&, Var a) {
         return concat(std::array{a, a}, 1);
       }},
      {"dropout", [](Tape&, Var a) { return dropout(a, 0.4, 3); }},
      {"max_pool_set", [](Tape&, Var a) { return max_pool_set(a); }},
      {"repeat",
       [](Tape& tape, Var a) {
         return repeat(tape.reshape(a, {24, 1, 8}), 1, 4);
       }},
      {"patchify",
       [](Tape& tape, Var a) {
         return patchify(tape.reshape(a, {2, 1, 12, 8}), 4);
       }},
      {"mul by rows", [](Tape&, Var a) { return mul(a, slice(a, 0, 0, 1)); }},
      {"div by rows", [](Tape&, Var a) { return div(slice(a, 0, 0, 1), a); }},
      {"gather_rows", [](Tape& tape, Var a) { return gather_rows(a, indices(tape, {7}, [](int64_t i) { return i * i % 6; })); }},
  };
  for (const auto& [name, f] : functions)
    check_same(
        name, [&f = f](Tape& tape, Var a) { return add(f(tape, a), f(tape, a)); }, shape, x);
}

TEST_CASE("indices outside the table give rows of NaN and no gradient") {
  const int64_t rows = 5;
  const auto index = [](int64_t i) { return i % 3 == 1 ? (i % 2 ? -1.0 : 5.0) : i == 2 ? 2147483647.0 : i == 3 ? -2147483648.0 : double(i % 5); };
  for (const int64_t count : {6, 300})
    for (const int64_t width : {3, 8})
      for (const bool gathers : {false, true}) {
        Numbers table(static_cast<size_t>(rows * width)), y(static_cast<size_t>(count * width)), dtable(table.size(), 0);
        for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<double>(i);
        for (int64_t i = 0; i < count * width; ++i) {
          const double row = index(i / width);
          const bool inside = row >= 0 && row < rows;
          const auto place = static_cast<size_t>(inside ? static_cast<int64_t>(row) * width + i % width : 0);
          y[static_cast<size_t>(i)] = inside ? table[place] : NAN;
          if (inside) dtable[place] += 1 + static_cast<double>(i % 7);
        }
        auto f = [&](Tape& tape, Var a) {
          const Var t = indices(tape, {count}, index);
          return gathers ? gather_rows(a, t) : embedding(t, a);
        };
        const auto got = run(f, {rows, width}, table, DType::f32, Device::cuda());
        for (size_t i = 0; i < y.size(); ++i) CHECK(near(y[i], got[0][i], 0));
        for (size_t i = 0; i < dtable.size(); ++i) CHECK(near(dtable[i], got[1][i], 1e-6));
      }
}

TEST_CASE("a list of indices that several blocks sort") {
  for (const int64_t rows : {1, 3, 700}) {
    Numbers table(static_cast<size_t>(rows));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<double>(i);
    check_same(
        "embedding", [&](Tape& tape, Var a) { return embedding(indices(tape, {4100}, [&](int64_t i) { return i * 7919 % 977 % rows; }), a); },
        {rows, 1}, table);
  }
}

TEST_CASE("a divisor divides exactly") {
  std::vector<int64_t> numbers;
  for (int64_t i = 1; i < 70; ++i) numbers.push_back(i);
  for (int bit = 6; bit < 63; ++bit)
    for (const int64_t near_power : {-1, 0, 1}) numbers.push_back((int64_t{1} << bit) + near_power);
  numbers.push_back(INT64_MAX);
  RandomStream random(1, "divisor");
  for (int i = 0; i < 1000; ++i) numbers.push_back(1 + static_cast<int64_t>(random.below(uint64_t{1} << (1 + i % 62))));
  int wrong = 0;
  for (const int64_t d : numbers) {
    const cuda::Divisor divisor(d);
    for (const int64_t n : numbers) {
      wrong += divisor.divide(n) != n / d;
      wrong += divisor.divide(n / d * d) != n / d;
      if (n >= d) wrong += divisor.divide(n / d * d - 1) != n / d - 1;
    }
  }
  CHECK(wrong == 0);
}
