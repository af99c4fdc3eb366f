// Dropout that always drops: layers decide whether to apply it. The mask is a function of the tape's seed and step, the stream
// and the element's number, so the backward draws it again, and it is the same for f32 and f64, for any number of threads and of processes:
// elements are numbered from `first` on, their place in the whole batch.
#include "ops/ops.h"
#include "ops/shape_rules.h"

namespace sinkgrad {
namespace cpu {
ForwardKernel dropout_forward;
BackwardKernel dropout_backward;
}  // namespace cpu

namespace {

Signature infer(std::span<const View> in, const Attrs& attrs) {
  require_float("dropout", in[0]);
  const double p = attrs.get("p"), stream = attrs.get("stream"), first = attrs.get("first", 0);
  require(p >= 0 && p <= 1, "dropout: p must lie in 0..1, got ", p);
  require(stream >= 0 && stream < 0x1p53, "dropout: the stream must be below 2^53 (see stream_id), got ", stream);
  require(first >= 0 && first < 0x1p53, "dropout: the number of the first element must lie in 0..2^53, got ", first);
  return in[0].shape;
}

std::vector<Sample> samples() {
  return {{{{{4, 5}}}, {{"p", 0.5}, {"stream", 7}}},
          {{{{3, 3, 7}}}, {{"p", 0.1}, {"stream", static_cast<double>(stream_id("dropout"))}}},
          {{{{2, 3}}}, {{"p", 0}, {"stream", 7}}},
          {{{{2, 3}}}, {{"p", 1}, {"stream", 7}}, true},
          {{{{}}}, {{"p", 0}, {"stream", 7}}},
          {{{{0, 3}}}, {{"p", 0.5}, {"stream", 7}}, true},
          {{{{1025}}}, {{"p", 0.3}, {"stream", 7}}},
          {{{{4, 5}}}, {{"p", 0.5}, {"stream", 7}, {"first", 3}}},
          {{{{1025}}}, {{"p", 0.3}, {"stream", 7}, {"first", 0x1p34 + 126}}}};
}

const OpDef& dropout_op = register_op(
    {.name = "dropout", .min_inputs = 1, .max_inputs = 1, .infer = infer, .cpu = {cpu::dropout_forward, cpu::dropout_backward}, .samples = samples});

}  // namespace

Var dropout(Var x, double p, uint64_t stream) {
  const BatchShare& share = x.tape->share();
  const int64_t count = x.shape().count();
  require<ShapeError>(share.first == 0 || count % share.items == 0, "dropout: the first dimension must be that of the ", share.items,
                      " items of the batch, got ", x.shape());
  const int64_t first = share.first == 0 ? 0 : share.first * (count / share.items);
  return x.tape->apply(dropout_op, {x}, {{"p", p}, {"stream", static_cast<double>(stream)}, {"first", static_cast<double>(first)}});
}

}  // namespace sinkgrad
