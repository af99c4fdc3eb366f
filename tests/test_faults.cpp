// Faults of similar software that concern every op (docs/reliability.md lists them all): where memory begins, how large a batch is, nothing at all.
#include <catch2/catch.hpp>
#include <cstring>

#include "batch_check.h"
#include "core/gradcheck_case.h"

using namespace sinkgrad;

namespace {

/// Output and gradients of a sample whose inputs and gradients begin `offset` elements behind an aligned address.
std::vector<Numbers> run_at(const detail::GradcheckCase& c, DType dtype, int64_t offset) {
  const std::vector<Numbers> x = detail::draw(c, 1);
  Tape tape(dtype);
  std::vector<Tensor> memory;
  const auto place = [&](const Shape& shape, DType type, const Numbers& values) {
    Numbers all(static_cast<size_t>(offset), 0);
    all.insert(all.end(), values.begin(), values.end());
    memory.push_back(tensor_of({static_cast<int64_t>(all.size())}, type, all));
    return memory.back().view().rows(offset, offset + shape.count()).reshaped(shape);
  };
  std::vector<Var> in;
  std::vector<View> gradients;
  for (size_t k = 0; k < x.size(); ++k) {
    const SampleInput& input = c.inputs[k];
    if (input.absent) {
      in.emplace_back();
      continue;
    }
    const View value = place(input.shape, input.integer ? DType::i32 : dtype, x[k]);
    if (!input.integer && input.differentiable) gradients.push_back(place(input.shape, dtype, Numbers(x[k].size(), 0)));
    in.push_back(input.integer || !input.differentiable ? tape.leaf(value) : tape.leaf(value, gradients.back()));
  }
  const Var y = c.function(tape, in);
  std::vector<Numbers> results{to_doubles(tape.value(y))};
  if (tape.requires_grad(y)) tape.backward(y, tensor_of(y.shape(), dtype, detail::draw_cotangent(c, 1, results[0].size())));
  for (const View& g : gradients) results.push_back(to_doubles(g));
  return results;
}

bool same_bits(const std::vector<Numbers>& a, const std::vector<Numbers>& b) {
  for (size_t k = 0; k < a.size(); ++k)
    if (a[k].size() != b[k].size() || (!a[k].empty() && std::memcmp(a[k].data(), b[k].data(), a[k].size() * sizeof(double)) != 0)) return false;
  return a.size() == b.size();
}

}  // namespace

TEST_CASE("fault 90: every op gives the same bits wherever in memory its operands begin") {
  for (const OpDef* op : registered_ops())
    for (size_t sample = 0; sample < op->samples().size(); ++sample)
      for (const DType dtype : {DType::f32, DType::f64}) {
        const detail::GradcheckCase c = detail::case_of(*op, sample);
        const std::vector<Numbers> aligned = run_at(c, dtype, 0);
        for (int64_t offset = 1; offset < 8; ++offset) {
          INFO(op->name << ", sample " << sample << ", " << name_of(dtype) << ", offset " << offset);
          CHECK(same_bits(run_at(c, dtype, offset), aligned));
        }
      }
}

TEST_CASE("fault 88: batches of more than 65535 matrices") {
  for (const BatchedOp& op : batched_ops())
    for (const int64_t batch : {65'535, 65'536, 70'000}) CHECK(wrong_item(op, batch, Device::cpu()).empty());
}

TEST_CASE("fault 91: a product over nothing is zero whatever was in memory, and empty operands give empty results and gradients") {
  set_memory_poison(true);
  Tape tape(DType::f32);
  const Tensor tall({10, 1, 0}), wide({10, 0, 7}), none({0, 3}), square({3, 4}), no_batch({0, 3, 4}), rows({0, 5}), columns({5, 0});
  const Var a = tape.variable(tall), b = tape.variable(wide), product = matmul(a, b);
  CHECK(product.shape() == Shape{10, 1, 7});
  CHECK(to_doubles(tape.value(product)) == Numbers(70, 0));
  tape.backward(product, tensor_of({10, 1, 7}, DType::f32, Numbers(70, 1)));
  CHECK(tape.grad(a).shape == Shape{10, 1, 0});
  CHECK(tape.grad(b).shape == Shape{10, 0, 7});
  tape.reset();
  const Var x = tape.variable(none), w = tape.variable(square), empty = matmul(x, w);
  CHECK(empty.shape() == Shape{0, 4});
  tape.backward(sum(empty));
  CHECK(to_doubles(tape.grad(w)) == Numbers(12, 0));
  tape.reset();
  CHECK(matmul(tape.leaf(no_batch), tape.leaf(square), false, true).shape() == Shape{0, 3, 3});
  for (const Tensor* t : {&rows, &columns}) {
    tape.reset();
    const Var scores = tape.variable(*t), plan = sinkhorn(scores, {.iterations = 3});
    CHECK(softmax(scores).shape() == t->shape());
    CHECK(plan.shape() == t->shape());
    tape.backward(sum(plan));
    CHECK((!tape.grad(scores) || tape.grad(scores).shape == t->shape()));
  }
  set_memory_poison(false);
}
