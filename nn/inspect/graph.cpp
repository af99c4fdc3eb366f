// Nodes are made record by record; a map from values to nodes gives the edges.
#include "nn/inspect/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "core/numbers.h"
#include "nn/record_place.h"

namespace sinkgrad {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string attributes_of(const Tape& tape, const Record& r) {
  std::string s;
  const Attrs attrs = tape.attrs(r);  // a copy: items() would dangle in the loop without a name
  for (const Attr& a : attrs.items()) s += fmt::format("{}{}={:g}", s.empty() ? "" : " ", a.name, a.value);
  return s;
}

class Builder {
 public:
  Builder(Var last, Module& module, const RecordTimes& times, const GraphOptions& options)
      : last_(last), tape_(*last.tape), module_(module), times_(times), options_(options) {}

  std::vector<GraphNode> build() {
    for (size_t k = 0; k < tape_.records().size(); ++k) add_record(k);
    return std::move(nodes_);
  }

 private:
  std::string numbers(const View& v) const {
    if (!v || v.shape.count() > options_.max_values) return "";
    std::string s;
    for (double x : to_doubles(v, tape_.device())) s += fmt::format("{}{:.4g}", s.empty() ? "" : " ", x);
    return s;
  }

  size_t node_of(uint32_t value) {
    value = tape_.source(value);
    if (const auto known = node_by_value_.find(value); known != node_by_value_.end()) return known->second;
    const View& v = tape_.value(value);
    const Parameter* p = parameter_at(module_, v.data);
    nodes_.push_back({.kind = p ? GraphNode::Kind::parameter : GraphNode::Kind::data,
                      .title = p ? p->name : "data",
                      .shape = v.shape,
                      .bytes = p ? 0 : v.bytes(),
                      .values = numbers(v),
                      .gradient = p ? numbers(p->grad) : ""});
    return node_by_value_[value] = nodes_.size() - 1;
  }

  void add_record(size_t index) {
    const Record& r = tape_.records()[index];
    std::vector<size_t> inputs;
    for (uint32_t id : tape_.inputs(r))
      if (id != Tape::kAbsent) inputs.push_back(node_of(id));
    const View& out = tape_.value(r.output);
    GraphNode node{.kind = GraphNode::Kind::op,
                   .title = r.op->name,
                   .module = place_of(tape_, r, module_).module,
                   .attributes = attributes_of(tape_, r),
                   .shape = out.shape,
                   .bytes = out.bytes(),
                   .forward = times_.forward(index),
                   .backward = times_.backward(index),
                   .inputs = inputs,
                   .values = numbers(out),
                   .gradient = numbers(tape_.grad(Var{last_.tape, r.output, last_.step}))};
    for (const View& saved : tape_.saved(r)) node.bytes += saved.bytes();
    if (options_.open && node.title.starts_with("sinkhorn")) open(r, node);
    nodes_.push_back(std::move(node));
    node_by_value_[r.output] = nodes_.size() - 1;
  }

  /// Puts the half-steps of a Sinkhorn call before its node, which then reads the last of them (and the values, of attention).
  void open(const Record& r, GraphNode& node) {
    const std::span<const View> saved = tape_.saved(r);
    const bool attention = node.title == "sinkhorn_attention";
    const size_t value_input = 2;  // queries, keys, values
    std::vector<size_t> before(node.inputs);
    if (attention) before.erase(before.begin() + value_input);
    for (int64_t step = 0; step < tape_.attrs(r).integer("iterations"); ++step) {
      const View& potentials = saved[static_cast<size_t>(step % 2)];  // (matrices, steps, lines)
      const Shape shape{potentials.shape[0], potentials.shape[2]};
      const size_t bytes = static_cast<size_t>(shape.count()) * size_of(potentials.dtype);
      nodes_.push_back({.kind = GraphNode::Kind::half_step,
                        .title = fmt::format("half-step {} ({})", step + 1, step % 2 ? "columns" : "rows"),
                        .module = node.module,
                        .shape = shape,
                        .bytes = bytes,
                        .inputs = before});
      node.bytes -= bytes;
      before = {nodes_.size() - 1};
    }
    if (attention) before.push_back(node.inputs[value_input]);
    node.inputs = before;
  }

  Var last_;
  const Tape& tape_;
  Module& module_;
  const RecordTimes& times_;
  const GraphOptions& options_;
  std::vector<GraphNode> nodes_;
  std::map<uint32_t, size_t> node_by_value_;
};

}  // namespace

void RecordTimes::start() { last_ = now(); }

void RecordTimes::lap(const Tape& tape, const Record& record, size_t direction) {
  auto& all = seconds_[direction];
  const auto index = static_cast<size_t>(&record - tape.records().data());
  if (all.size() <= index) all.resize(index + 1);
  const double time = now();
  all[index].push_back(time - last_);
  last_ = now();
}

double RecordTimes::median(size_t record, size_t direction) const {
  if (record >= seconds_[direction].size() || seconds_[direction][record].empty()) return 0;
  std::vector<double> sorted = seconds_[direction][record];
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

std::vector<GraphNode> tape_graph(Var last, Module& module, const RecordTimes& times, const GraphOptions& options) {
  return Builder(last, module, times, options).build();
}

}  // namespace sinkgrad
