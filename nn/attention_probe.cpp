// Items go through one by one: plans of long texts are large, and a batch of one equals its slice of a larger batch.
#include "nn/attention_probe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sinkgrad {
namespace {

/// Exposes the plans of a model's attention steps while it lives.
class ExposedPlans {
 public:
  explicit ExposedPlans(Model& model) : attentions_(model.attentions()) {
    for (AttentionHeads* attention : attentions_) before_.push_back(std::exchange(attention->sinkhorn.expose_plan, true));
  }
  ~ExposedPlans() {
    for (size_t i = 0; i < attentions_.size(); ++i) attentions_[i]->sinkhorn.expose_plan = before_[i];
  }
  const std::vector<AttentionHeads*>& attentions() const { return attentions_; }

 private:
  std::vector<AttentionHeads*> attentions_;
  std::vector<bool> before_;
};

/// Which queries or keys of each batch entry take part: (B, count) of 1 and 0, from the mask at input `k` of the op that made `output`.
std::vector<double> taking_part(Var output, size_t k, int64_t batch, int64_t count) {
  const Tape& tape = *output.tape;
  std::vector<double> part(static_cast<size_t>(batch * count), 1);
  const auto record = std::ranges::find(tape.records(), tape.source(output.id), &Record::output);
  if (const uint32_t mask = tape.inputs(*record)[k]; mask != Tape::kAbsent)
    std::ranges::transform(to_doubles(tape.value(mask), tape.device()), part.begin(), [](double excluded) { return excluded == 0 ? 1.0 : 0.0; });
  return part;
}

/// One plan (n, m), whose rows need not sum to 1 (options of the released code), with its queries and keys that take part.
struct PlanView {
  const double *weights, *queries, *keys;
  size_t n, m;
  bool even;  ///< it ends on a column step
};

void add_plan(const PlanView& plan, double share, AttentionStatistics& sum) {
  const double queries = std::accumulate(plan.queries, plan.queries + plan.n, 0.0), keys = std::accumulate(plan.keys, plan.keys + plan.m, 0.0);
  if (queries == 0 || keys == 0) return;
  std::vector<double> columns(plan.m, 0);
  double entropy = 0, row_error = 0, total = 0;
  for (size_t i = 0; i < plan.n * plan.m; ++i) total += plan.weights[i];
  const double scale = queries / total;  // rows sum to 1 on average
  for (size_t i = 0; i < plan.n; ++i) {
    if (plan.queries[i] == 0) continue;
    double row = 0;
    for (size_t j = 0; j < plan.m; ++j) {
      const double weight = scale * plan.weights[i * plan.m + j];
      row += weight;
      columns[j] += weight * keys / queries;
      if (weight > 0) entropy -= weight * std::log(weight);
    }
    row_error = std::max(row_error, std::abs(row - 1));
  }
  double column_error = 0;
  for (size_t j = 0; j < plan.m; ++j) {
    if (plan.keys[j] == 0) continue;
    sum.column_min = std::min(sum.column_min, columns[j]);
    sum.column_max = std::max(sum.column_max, columns[j]);
    column_error = std::max(column_error, std::abs(columns[j] - 1));
  }
  sum.marginal_error = std::max(sum.marginal_error, plan.even ? row_error : column_error);
  sum.entropy += share * (keys > 1 ? entropy / queries / std::log(keys) : 1);
}

void merge(const AttentionStatistics& item, double share, AttentionStatistics& all) {
  all.column_min = std::min(all.column_min, item.column_min);
  all.column_max = std::max(all.column_max, item.column_max);
  all.marginal_error = std::max(all.marginal_error, item.marginal_error);
  all.entropy += share * item.entropy;
}

}  // namespace

std::vector<AttentionStatistics> attention_statistics(const AttentionHeads& attention) {
  const View plan = attention.plan();  // (B, H, N, M)
  const int64_t batch = plan.shape[0], heads = plan.shape[1], n = plan.shape[2], m = plan.shape[3];
  const std::vector<double> weights = to_doubles(plan, attention.last.tape->device());
  const std::vector<double> keys = taking_part(attention.last, 3, batch, m), queries = taking_part(attention.last, 4, batch, n);
  std::vector<AttentionStatistics> statistics(static_cast<size_t>(heads));
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      add_plan({&weights[static_cast<size_t>((b * heads + h) * n * m)], &queries[static_cast<size_t>(b * n)], &keys[static_cast<size_t>(b * m)],
                static_cast<size_t>(n), static_cast<size_t>(m), attention.sinkhorn.iterations % 2 == 0},
               1 / static_cast<double>(batch), statistics[static_cast<size_t>(h)]);
  return statistics;
}

AttentionProbe::AttentionProbe(Model& model, const DataSource& data, Device device, Precision precision, int64_t items)
    : model_(&model), data_(&data), items_(std::min(items, data.size())), tape_(DType::f32, device) {
  require(items > 0, "attention probe: requires at least one item, got ", items);
  tape_.set_precision(precision);
  tape_.set_training(false);
  tape_.set_recording(false);
}

std::vector<std::vector<AttentionStatistics>> AttentionProbe::measure() {
  const ExposedPlans exposed(*model_);
  std::vector<std::vector<AttentionStatistics>> layers;
  for (int64_t i = 0; i < items_; ++i) {
    tape_.reset();
    const uint32_t index[] = {static_cast<uint32_t>(i)};
    const Batch item = data_->batch(index, std::nullopt, memory_);
    model_->scores(tape_.leaf(item.inputs), item.context ? tape_.leaf(item.context) : Var{});
    for (size_t layer = 0; layer < exposed.attentions().size(); ++layer) {
      const std::vector<AttentionStatistics> heads = attention_statistics(*exposed.attentions()[layer]);
      if (i == 0) layers.emplace_back(heads.size());
      for (size_t h = 0; h < heads.size(); ++h) merge(heads[h], 1 / static_cast<double>(items_), layers[layer][h]);
    }
  }
  tape_.reset();
  return layers;
}

}  // namespace sinkgrad
