// What `sinkgrad bench` measures: ops, fused attention and whole training steps, each with the work it does, so that a time becomes a
// fraction of what the machine can do.
#pragma once
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/tape.h"

namespace sinkgrad {

/// The least work an op can do: bytes to and from memory, FLOPs of matrix products, exponentials.
struct Work {
  double bytes = 0, flops = 0, exps = 0;
};

struct BenchCase {
  std::string suite, name;
  Work forward, backward;
  /// Makes the inputs once on the device and returns one step: records on the tape and returns the output.
  std::function<std::function<Var(Tape&)>(Device)> prepare;
  /// For the script that times PyTorch on the same case: the op and its numbers.
  std::vector<std::pair<std::string, double>> parameters = {};
};

struct Timing {
  double median = 0, lowest_tenth = 0;  ///< seconds
  int samples = 0;
};

struct BenchResult {
  Timing forward, both;  ///< both: forward and backward, the backward is their difference
  size_t tape_bytes = 0;
};

/// One entry per op family at sizes of real models.
std::vector<BenchCase> op_cases();
/// Fused attention: (batch*heads, n) of docs/cpu.md or docs/gpu.md times half-steps 1, 3, 5, 21, head size 64. Work is that of the resident
/// form on a CPU, which keeps the plan in main memory, and on a GPU where it fits on chip.
std::vector<BenchCase> attention_cases(bool small, DeviceKind kind);

/// The work of Sinkhorn attention with l half-steps on `matrices` n x n problems of head size d, operands of `operand_bytes`:
/// resident (the plan stays on chip: one exponential per score) or in fused sweeps over recomputed scores ((l+1)/2 of them).
Work attention_work(double matrices, double n, double d, int l, bool backward, bool resident, double operand_bytes);

/// Markdown: bytes, FLOPs, exponentials and the least time of every attention case on a device of the given rates per second.
struct DeviceRates {
  std::string name;
  double copy_bytes, bf16_flops, exps, fmas;
};
std::string attention_floors(const DeviceRates& rates);

/// Times work on a device: at least three samples and `seconds` of running.
struct Stopwatch {
  Device device;
  double seconds;
  bool processor_time = false;  ///< of the calling thread instead of the time that passes: for one thread on a busy machine
  double now() const;
  Timing operator()(const std::function<void()>& work) const;
};
BenchResult measure(const BenchCase& c, const Stopwatch& time, Precision precision);

/// A model (models/registry.h) that is trained with Adam on random items: tools/bench/compare_steps.py knows the same ones in PyTorch.
struct StepCase {
  std::string name;
  nlohmann::json model;
  Shape item;  ///< of texts: (longest, vocabulary)
  int64_t classes, batch;
  bool texts = false;
};
/// The models of the paper's experiments at batches of a laptop, with softmax and with 3 half-steps.
std::vector<StepCase> step_cases();

struct StepTiming {
  Timing time;  ///< of one update: batch, forward, loss, backward, optimizer
  int64_t parameters = 0;
  size_t tape_bytes = 0;
  /// Mean seconds of all applications of an op in one update, by name; those of a GPU are launches alone.
  struct OpTime {
    double forward = 0, backward = 0;
    int64_t calls = 0;
  };
  std::map<std::string, OpTime> ops;  ///< only of a profile
};
StepTiming time_training_step(const StepCase& c, const Stopwatch& time, Precision precision, bool profile);

/// What the device reaches on plain jobs of its own.
struct Ceilings {
  double copy_bytes = 0;  ///< bytes per second read and written by a copy larger than every cache
  double gemm_flops = 0;  ///< FLOP per second of a large square matrix product in the given precision
};

/// The least time for a piece of work, in seconds: its bytes or its FLOPs.
double floor_seconds(const Work& work, const Ceilings& ceilings);

/// Writes the inputs of an attention case, its cotangent, output and gradients as safetensors: q, k, v, d_out, out, dq, dk, dv.
void write_values(const BenchCase& attention, Device device, Precision precision, const std::string& path);
Ceilings measure_ceilings(const Stopwatch& time, Precision precision);

}  // namespace sinkgrad
