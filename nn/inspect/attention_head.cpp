// From the record of a sinkhorn_attention: C = scale q k', and with O = P v the cotangent dL/dP = dL/dO v'.
#include "nn/inspect/attention_head.h"

#include <limits>

namespace sinkgrad {
namespace {

/// Head `head` of item `item` of (B, N, H D), as (N, D).
struct Vectors {
  Numbers values;
  int64_t count, width;

  Vectors(const View& all, Device device, int64_t item, int64_t head, int64_t heads) : count(all.shape[1]), width(all.shape[2] / heads) {
    const Numbers numbers = to_doubles(all.rows(item, item + 1), device);
    for (int64_t i = 0; i < count; ++i) {
      const auto begin = numbers.begin() + (i * heads + head) * width;
      values.insert(values.end(), begin, begin + width);
    }
  }
};

/// (N, D), (M, D) -> (N, M): scale times all inner products.
Tensor products(const Vectors& a, const Vectors& b, double scale) {
  Tensor c({a.count, b.count}, DType::f64);
  auto out = c.span<double>().begin();
  for (int64_t i = 0; i < a.count; ++i)
    for (int64_t j = 0; j < b.count; ++j) {
      double sum = 0;
      for (int64_t d = 0; d < a.width; ++d) sum += a.values[static_cast<size_t>(i * a.width + d)] * b.values[static_cast<size_t>(j * b.width + d)];
      *out++ = scale * sum;
    }
  return c;
}

/// The nonzero elements of item `item` of an i32 mask (B, K); none where there is no mask.
std::vector<int64_t> masked(const View& mask, Device device, int64_t item) {
  std::vector<int64_t> lines;
  if (!mask) return lines;
  const Numbers values = to_doubles(mask.rows(item, item + 1), device);
  for (size_t k = 0; k < values.size(); ++k)
    if (values[k] != 0) lines.push_back(static_cast<int64_t>(k));
  return lines;
}

}  // namespace

HeadScores head_scores(const AttentionHeads& attention, int64_t item, int64_t head) {
  require(static_cast<bool>(attention.last), "head scores: the attention has not been called");
  const Tape& tape = *attention.last.tape;
  const View gradient = tape.grad(attention.last);
  require(static_cast<bool>(gradient), "head scores: a backward is required after retain_grad of the attention's output");
  const std::span<const Record> records = tape.records();
  const Record& record = *std::find_if(records.begin(), records.end(), [&](const Record& r) { return r.output == attention.last.id; });
  const auto input = [&](size_t k) { return tape.inputs(record)[k] == Tape::kAbsent ? View{} : tape.value(tape.inputs(record)[k]); };
  const int64_t items = gradient.shape[0], heads = attention.count;
  require<InputError>(item >= 0 && item < items, "head scores: the item must lie in 0..", items - 1, ", got ", item);
  require<InputError>(head >= 0 && head < heads, "head scores: the head must lie in 0..", heads - 1, ", got ", head);

  const Device device = tape.device();
  const auto vectors = [&](const View& all) { return Vectors(all, device, item, head, heads); };
  HeadScores result{.scores = products(vectors(input(0)), vectors(input(1)), attention.scale)};
  InspectionOptions& options = result.options;
  options.half_steps = attention.sinkhorn.iterations;
  options.tolerance = attention.sinkhorn.tolerance;
  options.masked_keys = masked(input(3), device, item);
  options.masked_queries = masked(input(4), device, item);
  const auto valid = static_cast<double>(result.scores.shape()[0] - static_cast<int64_t>(options.masked_queries.size()));
  options.cotangent = products(vectors(gradient), vectors(input(2)), attention.sinkhorn.rows_sum_to_inverse_count ? 1 / valid : 1);
  if (const View pairs = input(5)) {
    const Numbers hidden = to_doubles(pairs.shape.rank() == 3 ? pairs.rows(item, item + 1) : pairs, device);
    for (size_t k = 0; k < hidden.size(); ++k)
      if (hidden[k] != 0) result.scores.span<double>()[k] = -std::numeric_limits<double>::infinity();
  }
  return result;
}

}  // namespace sinkgrad
