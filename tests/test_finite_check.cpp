// The first value that is not finite is named exactly, whatever made it: a planted fault, an overflow, a parameter, a gradient.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "core/rng.h"
#include "nn/finite_check.h"
#include "nn/trainer.h"
#include "nn/transformer.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Four layers of self-attention (B, N, 8), five half-steps each.
struct Net : Module {
  static constexpr int kLayers = 4;
  std::vector<std::unique_ptr<MultiHeadAttention>> layers;
  Net() {
    for (int k = 0; k < kLayers; ++k)
      layers.push_back(std::make_unique<MultiHeadAttention>(*this, "layers." + std::to_string(k),
                                                            AttentionOptions{.dim = 8, .heads = 2, .sinkhorn = {.iterations = 5}}));
  }
  Var operator()(Var x, const AttentionMasks& masks = {}) {
    for (auto& layer : layers) x = add(x, (*layer)(x, x, masks));
    return sum(mul(x, x));
  }
};

Tensor randn(const Shape& shape, uint64_t seed) {
  Tensor t(shape);
  RandomStream random(seed, "test");
  for (float& a : t.span<float>()) a = static_cast<float>(random.normal());
  return t;
}

/// Writes a value into a buffer that the k-th call of `op` keeps, before the check sees it.
struct Fault : FiniteCheck {
  const char* op;
  int call;
  size_t buffer, element;
  int seen = 0;
  Fault(Module& module, const char* o, int c, size_t b, size_t e) : FiniteCheck(module), op(o), call(c), buffer(b), element(e) {}
  void after_forward(const Tape& tape, const Record& r) override {
    if (r.op->name == std::string(op) && seen++ == call) tape.saved(r)[buffer].as<float>()[element] = kNan;
    FiniteCheck::after_forward(tape, r);
  }
};

/// The error of a step with an observer; empty when there is none.
std::string error_of(Net& net, const ParameterPack& pack, Observer& observer, const Tensor& x, const std::vector<int32_t>& padding = {}) {
  Tape tape;
  tape.set_random({.seed = 1, .step = 6});
  tape.set_observer(&observer);
  pack.gradients().span<float>()[0] = 0;
  const Tensor mask = padding.empty() ? Tensor() : Tensor::of<int32_t>({x.shape()[0], x.shape()[1]}, padding);
  try {
    const Var padded = mask ? tape.leaf(mask) : Var{};
    tape.backward(net(tape.leaf(x), {.key_is_padding = padded, .query_is_padding = padded}));
  } catch (const DivergedError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a NaN planted in layer 3, half-step 2 is named by layer, half-step and index") {
  Net net;
  const ParameterPack pack(net, DType::f32, 1);
  // Column potentials (B H, 2, M) with B = 2, H = 2, M = 5: item 1, head 0, first column step, key 4.
  Fault fault(net, "sinkhorn_attention", 3, 1, (2 * 2 + 0) * 5 + 4);
  const std::string error = error_of(net, pack, fault, randn({2, 5, 8}, 1));
  CHECK_THAT(error, Contains("at update 7: 'sinkhorn_attention' (record ") && Contains("after module layers.3)") &&
                        Contains("half-step 2 (columns) makes a potential nan at item 1, head 0, key 4") && Contains("; its inputs are (2,5,8) in "));
  Fault row(net, "sinkhorn_attention", 1, 0, (3 * 3 + 2) * 5 + 1);
  CHECK_THAT(error_of(net, pack, row, randn({2, 5, 8}, 1)),
             Contains("after module layers.1)") && Contains("half-step 5 (rows) makes a potential nan at item 1, head 1, query 1"));
}

TEST_CASE("sound steps pass, also with padding and fully padded items") {
  Net net;
  const ParameterPack pack(net, DType::f32, 1);
  FiniteCheck check(net);
  CHECK(error_of(net, pack, check, randn({2, 5, 8}, 1)).empty());
  CHECK(error_of(net, pack, check, randn({2, 5, 8}, 1), {0, 0, 0, 1, 1, 0, 0, 0, 0, 0}).empty());
  CHECK(error_of(net, pack, check, randn({2, 5, 8}, 1), {0, 0, 0, 1, 1, 1, 1, 1, 1, 1}).empty());
}

TEST_CASE("overflows, bad inputs and bad parameters are told apart") {
  Net net;
  const ParameterPack pack(net, DType::f32, 1);
  FiniteCheck check(net);
  Tensor x = randn({2, 5, 8}, 1);
  x.span<float>()[17] = kNan;
  CHECK_THAT(error_of(net, pack, check, x),
             Contains("an input of 'linear'") && Contains("in module layers.0)") && Contains("(2,5,8) is nan at (0,2,1)"));
  // Finite scores of any size are no fault: the products themselves must overflow.
  x = randn({2, 5, 8}, 1);
  for (float& a : x.span<float>()) a *= 1e30f;
  CHECK_THAT(error_of(net, pack, check, x), Contains("'sinkhorn_attention'") && Contains("after module layers.0)") && Contains("e+"));

  Parameter& weight = net.find_parameter("layers.2.out_proj.weight");
  weight.value.as<float>()[9] = std::numeric_limits<float>::infinity();
  CHECK_THAT(error_of(net, pack, check, randn({2, 5, 8}, 1)), Contains("the parameter layers.2.out_proj.weight (8,8) is inf at (1,1)"));
  Tape tape;
  net(tape.leaf(randn({2, 5, 8}, 1)));
  CHECK_THAT(first_nonfinite_value(tape, net), Contains("the parameter layers.2.out_proj.weight (8,8) is inf at (1,1)"));
}

TEST_CASE("a gradient that is not finite is named with the op that made it") {
  Net net;
  const ParameterPack pack(net, DType::f32, 1);
  FiniteCheck check(net);
  Tape tape;
  tape.set_observer(&check);
  const Tensor x = Tensor::of<float>({3}, {1, 0, 4});
  const Var v = tape.variable(x), loss = sum(sqrt(v));  // the derivative of the square root is infinite at 0
  CHECK_THROWS_WITH(tape.backward(loss), Contains("'sqrt' (record 0, before any parameter): the gradient of input 0 (3) is inf at (1)") &&
                                             Contains("its inputs are (3) in 0..4"));
}
