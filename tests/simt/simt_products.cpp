// The products of matmul and linear on the host executor: sizes beyond the ops' samples, rounded operands, misaligned memory, and
// stand-in libraries that refuse wrong calls. The truth is the CPU in f64, on operands rounded here.
#include <bit>
#include <catch2/catch.hpp>

#include "core/numbers.h"
#include "core/tape.h"
#include "cuda/products.h"
#include "ops/ops.h"
#include "simt/executor.h"

using namespace sinkgrad;

namespace {

using Function = Var (*)(std::span<const Var>);

double rounded(double value, Precision p) {
  if (p == Precision::full) return value;
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (p == Precision::tf32) return std::bit_cast<float>((bits + 0x1000u) & ~0x1fffu);
  return std::bit_cast<float>((bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u);
}
Numbers rounded(Numbers v, Precision p) {
  for (double& x : v) x = rounded(x, p);
  return v;
}

Numbers draw(int64_t count, const std::string& stream) {
  RandomStream random(7, stream);
  Numbers v(static_cast<size_t>(count));
  for (double& x : v) x = static_cast<float>(random.normal());
  return v;
}

/// Output first, then the gradient of each input, which starts from 1 where `add` is set.
struct Setting {
  Device device = Device::cuda();
  DType dtype = DType::f32;
  Precision precision = Precision::full;
  int64_t offset = 0;  ///< elements by which inputs and gradients are misaligned
  bool add = false;
};
std::vector<Numbers> run(Function f, const std::vector<Shape>& shapes, const std::vector<Numbers>& values, const Numbers& cotangent,
                         const Setting& s) {
  set_memory_poison(true);
  Tape tape(s.dtype, s.device);
  if (s.precision != Precision::full) tape.set_precision(s.precision);
  std::vector<Tensor> memory;
  auto place = [&](const Shape& shape, const Numbers& v) {
    Numbers all(static_cast<size_t>(s.offset), 0);
    all.insert(all.end(), v.begin(), v.end());
    all.push_back(0);
    memory.push_back(tensor_of({static_cast<int64_t>(all.size())}, s.dtype, all).to(s.device));
    return memory.back().view().rows(s.offset, s.offset + shape.count()).reshaped(shape);
  };
  std::vector<Var> vars;
  std::vector<View> gradients;
  for (size_t k = 0; k < shapes.size(); ++k) {
    const View value = place(shapes[k], values[k]);
    gradients.push_back(place(shapes[k], Numbers(values[k].size(), 1)));
    vars.push_back(s.add ? tape.leaf(value, gradients[k]) : tape.variable(value));
  }
  const Var y = f(vars);
  std::vector<Numbers> result{to_doubles(tape.value(y), s.device)};
  tape.backward(y, tensor_of(y.shape(), s.dtype, cotangent).to(s.device));
  for (size_t k = 0; k < shapes.size(); ++k) result.push_back(to_doubles(s.add ? gradients[k] : tape.grad(vars[k]), s.device));
  return result;
}

/// Compares one function of the inputs with the CPU, in f64 and in each precision, on aligned and on misaligned memory.
void check(Function f, const std::vector<Shape>& shapes, const Shape& out, bool last_is_bias = false) {
  std::vector<Numbers> values;
  for (size_t k = 0; k < shapes.size(); ++k) values.push_back(draw(shapes[k].count(), cat("input ", k)));
  const Numbers cotangent = draw(out.count(), "cotangent");
  for (const Precision p : {Precision::full, Precision::tf32, Precision::bf16})
    for (const DType dtype : {DType::f32, DType::f64})
      for (const bool hostile : {false, true}) {
        if (p != Precision::full && dtype == DType::f64) continue;
        INFO(name_of(p) << " " << name_of(dtype) << (hostile ? ", misaligned, added, " : ", ") << shapes[0] << " and " << shapes[1]);
        std::vector<Numbers> operands = values;
        for (size_t k = 0; k < operands.size() - last_is_bias; ++k) operands[k] = rounded(operands[k], p);
        auto truth = run(f, shapes, operands, rounded(cotangent, p), {.device = Device::cpu(), .dtype = DType::f64, .add = hostile});
        if (last_is_bias) truth.back() = run(f, shapes, operands, cotangent, {.device = Device::cpu(), .dtype = DType::f64, .add = hostile}).back();
        const Setting setting{.dtype = dtype, .precision = p, .offset = hostile ? 1 : 0, .add = hostile};
        const auto got = run(f, shapes, values, cotangent, setting), again = run(f, shapes, values, cotangent, setting);
        CHECK(distance({got[0]}, {truth[0]}) <= (dtype == DType::f64 ? 1e-13 : 2e-6));
        for (size_t k = 1; k < got.size(); ++k) CHECK(distance({got[k]}, {truth[k]}) <= (dtype == DType::f64 ? 1e-13 : 2e-6));
        CHECK(got == again);
      }
}

Var plain(std::span<const Var> x) { return matmul(x[0], x[1]); }
Var first_transposed(std::span<const Var> x) { return matmul(x[0], x[1], true); }
Var second_transposed(std::span<const Var> x) { return matmul(x[0], x[1], false, true); }
Var both_transposed(std::span<const Var> x) { return matmul(x[0], x[1], true, true); }
Var affine(std::span<const Var> x) { return linear(x[0], x[1], x[2]); }
Var without_bias(std::span<const Var> x) { return linear(x[0], x[1], {}); }

}  // namespace

TEST_CASE("matmul agrees with the CPU, whatever the sizes, the transposes and the precision") {
  for (const auto& [n, m, k] : std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {3, 33, 8}, {31, 2, 65}, {64, 9, 16}, {17, 40, 7}}) {
    check(plain, {{n, k}, {k, m}}, {n, m});
    check(second_transposed, {{3, n, k}, {3, m, k}}, {3, n, m});
    check(first_transposed, {{2, 2, k, n}, {2, 2, k, m}}, {2, 2, n, m});
    check(both_transposed, {{2, k, n}, {2, m, k}}, {2, n, m});
  }
}

TEST_CASE("a second operand may be shared by the batch") {
  check(plain, {{3, 5, 6}, {6, 7}}, {3, 5, 7});
  check(first_transposed, {{3, 6, 5}, {6, 7}}, {3, 5, 7});
  check(both_transposed, {{4, 6, 5}, {7, 6}}, {4, 5, 7});
  check(first_transposed, {{0, 6, 5}, {6, 7}}, {0, 5, 7});
}

TEST_CASE("a batch may be longer than a grid dimension") { check(plain, {{65537, 1, 1}, {65537, 1, 2}}, {65537, 1, 2}); }

TEST_CASE("products of nothing") {
  check(plain, {{10, 0}, {0, 7}}, {10, 7});
  check(first_transposed, {{2, 3, 0}, {2, 3, 4}}, {2, 0, 4});
  check(second_transposed, {{0, 2, 3}, {0, 4, 3}}, {0, 2, 4});
  check(affine, {{5, 0}, {3, 0}, {3}}, {5, 3}, true);
  check(affine, {{0, 4}, {3, 4}, {3}}, {0, 3}, true);
  check(affine, {{5, 4}, {0, 4}, {0}}, {5, 0}, true);
  check(without_bias, {{5, 0}, {3, 0}}, {5, 3});
}

TEST_CASE("linear agrees with the CPU, whatever the sizes, the precision and the order of threads") {
  simt::settings().schedule = GENERATE(simt::Schedule::warp_ahead, simt::Schedule::random, simt::Schedule::reverse);
  for (const int64_t m : {1, 3, 32, 33})
    for (const int64_t rows : {1, 9, 300}) check(affine, {{rows, 5}, {m, 5}, {m}}, {rows, m}, true);
  check(affine, {{4099, 2}, {1, 2}, {1}}, {4099, 1}, true);  // several chunks of rows for one column
  check(affine, {{2, 3, 24}, {16, 24}, {16}}, {2, 3, 16}, true);
  check(without_bias, {{9, 16}, {8, 16}}, {9, 8});
}

TEST_CASE("a fused kernel chosen for aligned operands is not used for others") {
  std::vector<double> memory(256);
  auto* aligned = reinterpret_cast<double*>((reinterpret_cast<uintptr_t>(memory.data()) + 127) / 128 * 128);
  const auto fused = [&](int64_t a, int64_t b, int64_t c) {
    const cuda::ElementType type = cuda::ElementType::f64;
    return cuda::multiply_and_add_bias(
        {.rows = 4, .columns = 4, .inner = 4, .a = {aligned + a, type, 4}, .b = {aligned + 32 + b, type, 4}, .c = aligned + 64 + c}, aligned + 128);
  };
  for (int pass = 0; pass < 2; ++pass) {
    CHECK(fused(0, 0, 0));
    CHECK_FALSE(fused(1, 0, 0));
    CHECK_FALSE(fused(0, 1, 0));
    CHECK_FALSE(fused(0, 0, 1));
  }
}

TEST_CASE("wrong library calls are refused with a sentence") {
  std::vector<float> memory(64);
  const cuda::Matrix good{memory.data(), cuda::ElementType::f32, 4};
  const auto product = [&](cuda::Matrix a, cuda::Matrix b, void* c) {
    cuda::multiply({.rows = 4, .columns = 4, .inner = 4, .a = a, .b = b, .c = c});
  };
  CHECK_NOTHROW(product(good, good, memory.data() + 32));
  CHECK_THROWS_WITH(product({memory.data(), cuda::ElementType::f32, 3}, good, memory.data() + 32),
                    Catch::Contains("leading dimension of B must be at least 4"));
  CHECK_THROWS_WITH(product({nullptr, cuda::ElementType::f32, 4}, good, memory.data() + 32), Catch::Contains("B is null"));
  CHECK_THROWS_WITH(product(good, good, memory.data() + 8), Catch::Contains("overlaps the result"));
  CHECK_THROWS_WITH(product(good, {memory.data(), cuda::ElementType::f64, 4}, memory.data() + 32),
                    Catch::Contains("no kernel for operands of types"));
  CHECK_THROWS_WITH(product(good, good, reinterpret_cast<char*>(memory.data()) + 130), Catch::Contains("C is not aligned"));
}
