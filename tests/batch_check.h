// Batched ops on more matrices than one dimension of a CUDA grid can count (65535): each item must come out as in a small batch.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/numbers.h"
#include "core/rng.h"
#include "ops/ops.h"

namespace sinkgrad {

struct BatchedOp {
  std::string name;
  std::function<Var(Var)> apply;  // of (B, 2, 2)
};

inline std::vector<BatchedOp> batched_ops() {
  return {{"matmul", [](Var x) { return matmul(x, x, false, true); }},
          {"transpose", [](Var x) { return transpose(x, 1, 2); }},
          {"softmax", [](Var x) { return softmax(x); }},
          {"logsumexp", [](Var x) { return logsumexp(x, 1); }},
          {"sinkhorn", [](Var x) { return sinkhorn(x, {.iterations = 3}); }},
          {"sinkhorn_attention", [](Var x) { return sinkhorn_attention(x, x, x, 1, 1, {.iterations = 3}); }},
          {"max_pool_set", [](Var x) { return max_pool_set(x); }}};
}

/// The output and the gradient of `batch` items that repeat every 7, as multiples of the batch's dimension.
inline std::vector<Numbers> run_batch(const BatchedOp& op, int64_t batch, Device device) {
  constexpr size_t kDifferent = 7, kItem = 4;
  RandomStream random(1, op.name);
  Numbers items(kDifferent * kItem), values, cotangent;
  for (double& v : items) v = random.normal();
  Tape tape(DType::f32, device);
  for (int64_t i = 0; i < batch; ++i)
    for (size_t k = 0; k < kItem; ++k) values.push_back(items[static_cast<size_t>(i) % kDifferent * kItem + k]);
  const Tensor input = tensor_of({batch, 2, 2}, DType::f32, values).to(device);
  const Var x = tape.variable(input), y = op.apply(x);
  const auto outputs = static_cast<size_t>(y.shape().count(1, y.shape().rank()));
  for (size_t i = 0; i < static_cast<size_t>(batch) * outputs; ++i) cotangent.push_back(items[i % (kDifferent * outputs) % items.size()]);
  tape.backward(y, tensor_of(y.shape(), DType::f32, cotangent));
  return {to_doubles(tape.value(y), device), to_doubles(tape.grad(x), device)};
}

/// The first number that differs from that of the same item in a batch of seven; the empty string when there is none.
inline std::string wrong_item(const BatchedOp& op, int64_t batch, Device device) {
  const std::vector<Numbers> many = run_batch(op, batch, device), few = run_batch(op, 7, device);
  for (size_t part = 0; part < 2; ++part) {
    if (many[part].size() / static_cast<size_t>(batch) != few[part].size() / 7) return cat(op.name, ": got ", many[part].size(), " numbers");
    for (size_t i = 0; i < many[part].size(); ++i)
      if (const double expected = few[part][i % few[part].size()]; !(many[part][i] == expected))
        return cat(op.name, part ? ", gradient" : "", ", number ", i, ": expected ", expected, ", got ", many[part][i]);
  }
  return {};
}

}  // namespace sinkgrad
