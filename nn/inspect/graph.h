// The tape of one step as a graph that can be written down: ops with bytes and times, Sinkhorn calls folded or opened into half-steps.
#pragma once
#include <string>
#include <vector>

#include "nn/module.h"

namespace sinkgrad {

/// How long each record takes. Observes one step after another; times of the same record are gathered.
class RecordTimes : public Observer {
 public:
  void after_forward(const Tape& tape, const Record& record) override { lap(tape, record, 0); }
  void after_backward(const Tape& tape, const Record& record, std::span<const Grad>) override { lap(tape, record, 1); }
  /// To be called where work begins that the next record is not to blame for: before a step and before its backward.
  void start();
  /// Medians in seconds; 0 for a record that never ran.
  double forward(size_t record) const { return median(record, 0); }
  double backward(size_t record) const { return median(record, 1); }

 private:
  void lap(const Tape& tape, const Record& record, size_t direction);
  double median(size_t record, size_t direction) const;
  std::vector<std::vector<double>> seconds_[2];  // forward and backward, by record
  double last_ = 0;
};

struct GraphNode {
  enum class Kind { data, parameter, op, half_step };
  Kind kind;
  std::string title;                       ///< name of op or parameter, "half-step 2 (columns)", "data" for other leaves
  std::string module;                      ///< that an op belongs to or follows
  std::string attributes;                  ///< "iterations=3 tolerance=0"
  Shape shape;                             ///< of the output; of a half-step its potentials
  size_t bytes = 0;                        ///< kept until the step ends: output and saved buffers
  double forward = 0, backward = 0;        ///< seconds
  std::vector<size_t> inputs = {};         ///< nodes, earlier in the list
  std::string values = {}, gradient = {};  ///< of small outputs
};

struct GraphOptions {
  bool open = false;       ///< a Sinkhorn call becomes scores, half-steps and (of attention) output; its time stays with the last of them
  int64_t max_values = 0;  ///< outputs of at most so many elements are shown with their values, and gradients where the tape retained them
};

/// The records of the tape that `last` is a value of, in their order, leaves before their first use.
std::vector<GraphNode> tape_graph(Var last, Module& module, const RecordTimes& times, const GraphOptions& options);

}  // namespace sinkgrad
