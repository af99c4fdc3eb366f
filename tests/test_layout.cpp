// The ops that move elements, against plain index loops: values, gradients, repeated inputs and refusals.
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>

#include "core/parallel.h"
#include "ops/ops.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

/// 1, 2, 3, ... in the given shape.
Tensor counting(const Shape& shape) {
  Tensor t(shape, DType::f64);
  std::iota(t.span<double>().begin(), t.span<double>().end(), 1.0);
  return t;
}

struct Result {
  Shape shape;
  std::vector<double> y, dx;
};

/// f of 1, 2, 3, ... and its gradient against the cotangent 1, 2, 3, ...
Result evaluate(const Shape& shape, const std::function<Var(Var)>& f) {
  Tape tape(DType::f64);
  const Tensor x = counting(shape);
  const Var in = tape.variable(x), y = f(in);
  tape.backward(y, counting(y.shape()));
  return {y.shape(), to_doubles(tape.value(y)), to_doubles(tape.grad(in))};
}

using Numbers = std::vector<double>;

}  // namespace

TEST_CASE("transpose swaps two axes, and back in the gradient") {
  const Shape shape = {2, 19, 3, 33, 2};
  for (int a = 0; a < 5; ++a)
    for (int b = -5; b < 5; ++b) {
      INFO("axes " << a << " " << b);
      const auto r = evaluate(shape, [&](Var x) { return transpose(x, a, b); });
      Shape expected = shape;
      expected.set(a, shape[b]);
      expected.set(b, shape[a]);
      REQUIRE(r.shape == expected);
      bool equal = true;
      int64_t i[5];
      for (int64_t flat = 0; flat < shape.count(); ++flat) {
        int64_t rest = flat;
        for (int d = 4; d >= 0; rest /= shape[d--]) i[d] = rest % shape[d];
        std::swap(i[a], i[b < 0 ? b + 5 : b]);
        int64_t to = 0;
        for (int d = 0; d < 5; ++d) to = to * expected[d] + i[d];
        equal &= r.y[static_cast<size_t>(to)] == static_cast<double>(flat + 1) && r.dx[static_cast<size_t>(flat)] == static_cast<double>(to + 1);
      }
      REQUIRE(equal);
    }
  Tape tape(DType::f64);
  const Tensor t({2, 3}, DType::f64);
  REQUIRE_THROWS_WITH(transpose(tape.leaf(t), 0, 2), Contains("transpose") && Contains("axis 2") && Contains("(2,3)"));
}

TEST_CASE("concat joins along any axis, also a value with itself") {
  Tape tape(DType::f64);
  const Tensor ta = counting({2, 2}), tb = counting({2, 1}), tc = counting({2, 0});
  const Var a = tape.variable(ta), b = tape.variable(tb), c = tape.variable(tc);
  const Var parts[] = {a, b, c, a};
  const Var y = concat(parts, -1);
  REQUIRE(to_doubles(tape.value(y)) == Numbers{1, 2, 1, 1, 2, 3, 4, 2, 3, 4});
  tape.backward(y, counting({2, 5}));
  REQUIRE(to_doubles(tape.grad(a)) == Numbers{1 + 4, 2 + 5, 6 + 9, 7 + 10});
  REQUIRE(to_doubles(tape.grad(b)) == Numbers{3, 8});

  const Var rows[] = {a, a};
  REQUIRE(concat(rows, 0).shape() == Shape{4, 2});
  const std::vector<Var> nine(9, a);
  REQUIRE_THROWS_WITH(concat(nine, 0), Contains("concat") && Contains("9"));
  REQUIRE_THROWS_WITH(concat({}, 0), Contains("concat"));
  const Var apart[] = {a, b};
  REQUIRE_THROWS_WITH(concat(apart, 0), Contains("concat") && Contains("(2,2)") && Contains("(2,1)"));
}

TEST_CASE("slice takes a range, and its gradient is 0 elsewhere") {
  const auto r = evaluate({2, 4}, [](Var x) { return slice(x, 1, 1, 3); });
  REQUIRE(r.y == Numbers{2, 3, 6, 7});
  REQUIRE(r.dx == Numbers{0, 1, 2, 0, 0, 3, 4, 0});
  const auto rows = evaluate({3, 2}, [](Var x) { return slice(x, -2, 2, 3); });
  REQUIRE(rows.y == Numbers{5, 6});
  REQUIRE(rows.dx == Numbers{0, 0, 0, 0, 1, 2});
  const auto both = evaluate({4}, [](Var x) { return add(slice(x, 0, 0, 3), slice(x, 0, 1, 4)); });
  REQUIRE(both.dx == Numbers{1, 3, 5, 3});
  Tape tape(DType::f64);
  const Tensor t({2, 3}, DType::f64);
  for (auto [begin, end] : {std::pair{-1, 2}, {2, 1}, {0, 4}})
    REQUIRE_THROWS_WITH(slice(tape.leaf(t), 1, begin, end), Contains("slice") && Contains(cat(begin, "..", end)) && Contains("(2,3)"));
}

TEST_CASE("pad surrounds with a value") {
  const auto r = evaluate({2, 2}, [](Var x) { return pad(x, 1, 1, 2, -5); });
  REQUIRE(r.y == Numbers{-5, 1, 2, -5, -5, -5, 3, 4, -5, -5});
  REQUIRE(r.dx == Numbers{2, 3, 7, 8});
  Tape tape(DType::f64);
  const Tensor t({2, 3}, DType::f64);
  REQUIRE_THROWS_WITH(pad(tape.leaf(t), 0, -1, 0), Contains("pad") && Contains("-1") && Contains("(2,3)"));
}

TEST_CASE("gather_rows takes rows in any order, sums repeated ones and refuses those that are not there") {
  Tape tape(DType::f64);
  const Tensor table = counting({3, 2}), rows = Tensor::of<int32_t>({4}, {2, 0, 2, 2});
  const Var x = tape.variable(table), y = gather_rows(x, tape.leaf(rows));
  REQUIRE(to_doubles(tape.value(y)) == Numbers{5, 6, 1, 2, 5, 6, 5, 6});
  tape.backward(y, counting({4, 2}));
  REQUIRE(to_doubles(tape.grad(x)) == Numbers{3, 4, 0, 0, 1 + 5 + 7, 2 + 6 + 8});

  for (int32_t bad : {-1, 3}) {
    const Tensor wrong = Tensor::of<int32_t>({2}, {1, bad});
    REQUIRE_THROWS_WITH(gather_rows(x, tape.leaf(wrong)),
                        Contains("gather_rows") && Contains(cat("index ", bad, " at position (1)")) && Contains("0..2"));
  }
  const Tensor floats({2}, DType::f64);
  REQUIRE_THROWS_WITH(gather_rows(x, tape.leaf(floats)), Contains("gather_rows") && Contains("i32"));
}

TEST_CASE("gather_rows sums repeated rows to the same bits on any number of threads") {
  const int before = threads();
  std::vector<int32_t> indices(5000);
  for (size_t k = 0; k < indices.size(); ++k) indices[k] = static_cast<int32_t>(k * k % 7);
  const Tensor rows = Tensor::of<int32_t>({5000}, indices);
  Tensor cotangent({5000, 48});
  for (size_t i = 0; i < 5000 * 48; ++i) cotangent.span<float>()[i] = 1.0f / static_cast<float>(1 + i % 1013);
  std::vector<Numbers> runs;
  for (int n : {1, 3}) {
    set_threads(n);
    Tape tape;
    const Tensor table({7, 48});
    const Var x = tape.variable(table), y = gather_rows(x, tape.leaf(rows));
    tape.backward(y, cotangent);
    runs.push_back(to_doubles(tape.grad(x)));
  }
  set_threads(before);
  REQUIRE(runs[0] == runs[1]);
}

TEST_CASE("repeat along an axis of length 1 sums in the gradient") {
  const auto r = evaluate({2, 1, 2}, [](Var x) { return repeat(x, 1, 3); });
  REQUIRE(r.shape == Shape{2, 3, 2});
  REQUIRE(r.y == Numbers{1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4});
  REQUIRE(r.dx == Numbers{1 + 3 + 5, 2 + 4 + 6, 7 + 9 + 11, 8 + 10 + 12});
  Tape tape(DType::f64);
  const Tensor t({2, 3}, DType::f64);
  REQUIRE_THROWS_WITH(repeat(tape.leaf(t), 1, 2), Contains("repeat") && Contains("(2,3)"));
}

TEST_CASE("patchify orders a patch by row, column, channel") {
  // Two channels of a 2 x 4 image, patches of 2 x 2.
  const auto r = evaluate({1, 2, 2, 4}, [](Var x) { return patchify(x, 2); });
  REQUIRE(r.shape == Shape{1, 2, 8});
  REQUIRE(r.y == Numbers{1, 9, 2, 10, 5, 13, 6, 14, 3, 11, 4, 12, 7, 15, 8, 16});
  for (size_t i = 0; i < r.y.size(); ++i) REQUIRE(r.dx[static_cast<size_t>(r.y[i]) - 1] == static_cast<double>(i + 1));
  Tape tape(DType::f64);
  const Tensor t({1, 3, 4, 6}, DType::f64);
  REQUIRE_THROWS_WITH(patchify(tape.leaf(t), 4), Contains("patchify") && Contains("4") && Contains("(1,3,4,6)"));
}
