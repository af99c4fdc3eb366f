// The maximum over a set of vectors, element by element. Masked members take no part, a fully masked set gives 0; ties go to the first.
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel max_pool_set_forward;
BackwardKernel max_pool_set_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs&) {
  const Shape& x = in[0].shape;
  require<ShapeError>(x.rank() == 3 && (!in[1] || in[1].shape == Shape{x[0], x[1]}), "max_pool_set: takes (B, N, D) and a mask (B, N), got ",
                      ShapesOf{in});
  require_float("max_pool_set", in[0]);
  require<ShapeError>(!in[1] || in[1].dtype == DType::i32, "max_pool_set: the mask must be i32, got ", name_of(in[1].dtype), " among ", ShapesOf{in});
  // The winners' numbers are kept as floats.
  require<ShapeError>(x[1] <= int64_t{1} << 24, "max_pool_set: at most 2^24 members are supported, got ", x);
  return {{x[0], x[2]}, {{x[0], x[2]}}};
}

std::vector<Sample> samples() {
  const auto none = SampleInput::none();
  return {{{{{2, 3, 4}}, none}},
          {{{{1, 5, 3}}, SampleInput::mask({1, 5}, {1, 0, 0, 1, 0})}},
          {{{{3, 4, 2}}, SampleInput::mask({3, 4}, {0, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1})}},  // the second set is fully masked
          {{{{3, 1, 7}}, none}},
          {{{{2, 2, 1}}, none}},
          {{{{4, 9, 13}}, none}},
          {{{{1, 70, 3}}, none}},
          {{{{2, 3, 2}}, SampleInput::mask({2, 3}, {1, 1, 1, 1, 1, 1})}, {}, true},
          {{{{2, 0, 3}}, none}, {}, true},
          {{{{0, 3, 2}}, none}, {}, true}};
}

std::vector<std::vector<Shape>> bad_shapes() { return {{{3, 4}}, {{2, 3, 4}, {2, 4}}, {{2, 3, 4}, {3}}, {{2, 3, 4}, {2, 3}}}; }

const OpDef& max_pool_set_op = register_op({.name = "max_pool_set",
                                            .min_inputs = 1,
                                            .max_inputs = 2,
                                            .infer = infer,
                                            .cpu = {cpu::max_pool_set_forward, cpu::max_pool_set_backward},
                                            .samples = samples,
                                            .bad_shapes = bad_shapes});

}  // namespace

Var max_pool_set(Var x, Var is_masked) { return x.tape->apply(max_pool_set_op, {x, is_masked}); }

}  // namespace sinkgrad
