// Ops whose products a tape computes in bf16: forward and backward read rounded operands and add in f32.
#include <catch2/catch.hpp>
#include <cmath>

#include "ops/ops.h"

using namespace sinkgrad;

namespace {

Tensor random_tensor(const Shape& shape, uint64_t seed) {
  Tensor t(shape, DType::f32);
  RandomStream random(seed, "precision");
  for (float& v : t.span<float>()) v = static_cast<float>(random.normal());
  return t;
}

/// In f64, rounded to the 8 bits that bf16 keeps of a mantissa.
Tensor rounded(const Tensor& t) {
  Tensor out(t.shape(), DType::f64);
  for (size_t i = 0; i < out.span<double>().size(); ++i) {
    const double x = t.span<float>()[i], unit = std::ldexp(1.0, std::ilogb(x) - 7);
    out.span<double>()[i] = std::nearbyint(x / unit) * unit;
  }
  return out;
}

using Op = std::function<Var(Tape&, Var, Var)>;

/// Output and gradients of op(a, b) under a cotangent.
std::vector<std::vector<double>> outcome(Tape& tape, const Op& op, const Tensor& a, const Tensor& b, const Tensor& cotangent) {
  const Var x = tape.variable(a), y = tape.variable(b), out = op(tape, x, y);
  tape.backward(out, cotangent);
  return {to_doubles(tape.value(out)), to_doubles(tape.grad(x)), to_doubles(tape.grad(y))};
}

}  // namespace

TEST_CASE("products in bf16 equal products of rounded operands, forward and backward") {
  struct Case {
    const char* name;
    Op op;
    Shape a, b, out;
  };
  auto product = [](bool ta, bool tb) { return [ta, tb](Tape&, Var a, Var b) { return matmul(a, b, ta, tb); }; };
  const Case cases[] = {{"linear", [](Tape&, Var x, Var w) { return linear(x, w); }, {37, 45}, {19, 45}, {37, 19}},
                        {"matmul", product(false, false), {2, 9, 13}, {2, 13, 21}, {2, 9, 21}},
                        {"matmul, first transposed", product(true, false), {2, 13, 9}, {2, 13, 21}, {2, 9, 21}},
                        {"matmul, second transposed", product(false, true), {2, 9, 13}, {2, 21, 13}, {2, 9, 21}},
                        {"matmul, both transposed", product(true, true), {2, 13, 9}, {2, 21, 13}, {2, 9, 21}},
                        {"matmul, shared second", product(false, true), {2, 9, 13}, {21, 13}, {2, 9, 21}}};
  for (const Case& c : cases) {
    const Tensor a = random_tensor(c.a, 1), b = random_tensor(c.b, 2), cotangent = random_tensor(c.out, 3);
    Tape narrow(DType::f32), wide(DType::f64);
    narrow.set_precision(Precision::bf16);
    const auto found = outcome(narrow, c.op, a, b, cotangent), expected = outcome(wide, c.op, rounded(a), rounded(b), rounded(cotangent));
    for (size_t k = 0; k < found.size(); ++k) {
      INFO(c.name << ", result " << k);
      REQUIRE(found[k].size() == expected[k].size());
      for (size_t i = 0; i < found[k].size(); ++i) CHECK(std::abs(found[k][i] - expected[k][i]) < 1e-5);
    }
  }
}

TEST_CASE("a tape in float64 has no products in less") {
  Tape tape(DType::f64);
  REQUIRE_THROWS_WITH(tape.set_precision(Precision::bf16), Catch::Contains("bf16 products need an f32 tape, got f64"));
}
