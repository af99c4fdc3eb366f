// Rows of a table by index. Indices are checked against the table before the kernel runs.
#include "ops/indices.h"
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel embedding_forward;
BackwardKernel embedding_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs&) {
  const Shape &indices = in[0].shape, &table = in[1].shape;
  require<ShapeError>(table.rank() == 2 && indices.rank() < Shape::kMaxRank, "embedding: takes i32 indices (...) and a table (V, D), got ", indices,
                      " and ", table);
  require_float("embedding", in[1]);
  require<ShapeError>(in[0].dtype == DType::i32, "embedding: indices must be i32, got ", name_of(in[0].dtype), " of shape ", indices, " for ", table);
  Shape out = indices;
  out.push_back(table[1]);
  return out;
}

std::vector<Sample> samples() {
  auto indices = [](const Shape& s, double rows) { return SampleInput{.shape = s, .low = 0, .high = rows, .integer = true}; };
  return {{{indices({4}, 7), {{7, 3}}}},
          {{indices({3, 5}, 4), {{4, 9}}}},  // 15 indices into 4 rows: duplicates
          {{SampleInput::mask({3, 2}, {1, 1, 0, 1, 1, 1}), {{3, 130}}}},
          {{indices({1}, 1), {{1, 1}}}},
          {{indices({}, 3), {{3, 4}}}},
          {{indices({5}, 6), {{6, 8}}}},
          {{indices({3, 70}, 50), {{50, 2}}}},
          {{indices({2100}, 5), {{5, 1}}}},  // more than a block of a GPU sorts
          {{indices({0}, 3), {{3, 4}}}, {}, true},
          {{indices({2, 3}, 3), {{3, 0}}}, {}, true},
          {{indices({0, 2}, 1), {{0, 4}}}, {}, true}};
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{2, 3}, {4}}, {{3}, {2, 4, 5}}, {{1, 1, 1, 1, 1, 2}, {3, 4}}}; }

Var reference(Tape& tape, std::span<const Var> in, const Attrs&) {
  Shape out = in[0].shape();
  const Var rows = gather_rows(in[1], tape.reshape(in[0], {out.count()}));
  out.push_back(in[1].shape()[1]);
  return tape.reshape(rows, out);
}

const OpDef& embedding_op = register_op({.name = "embedding",
                                         .min_inputs = 2,
                                         .max_inputs = 2,
                                         .infer = infer,
                                         .cpu = {cpu::embedding_forward, cpu::embedding_backward},
                                         .samples = samples,
                                         .bad_shapes = bad_shapes,
                                         .reference = reference});

}  // namespace

Var embedding(Var indices, Var table) {
  if (table.shape().rank() == 2) require_indices("embedding", "index", indices, table.shape()[0], {}, "the table ", table.shape());
  return table.tape->apply(embedding_op, {indices, table});
}

}  // namespace sinkgrad
