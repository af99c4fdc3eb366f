// What `sinkgrad bench` measures: ops, fused attention and whole training steps, each with the work it does, so that a time becomes a
// fraction of what the machine can do.
#pragma once
#include <functional>
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
/// Fused attention: (batch*heads, n) of docs/gpu.md times half-steps 1, 3, 5, 21, head size 64.
std::vector<BenchCase> attention_cases(bool small);

/// The work of Sinkhorn attention with l half-steps on `matrices` n x n problems of head size d, operands of `operand_bytes`:
/// resident (the plan stays on chip: one exponential per score) or in fused sweeps over recomputed scores ((l+1)/2 of them).
Work attention_work(double matrices, double n, double d, int l, bool backward, bool resident, double operand_bytes);

/// Markdown: bytes, FLOPs, exponentials and the least time of every attention case on a device of the given rates per second.
struct DeviceRates {
  std::string name;
  double copy_bytes, bf16_flops, exps, fmas;
};
std::string attention_floors(const DeviceRates& rates);

/// Times a case: at least three samples and `seconds` of running.
BenchResult measure(const BenchCase& c, Device device, Precision precision, double seconds);
Timing measure(Device device, double seconds, const std::function<void()>& work);

/// What the device reaches on plain jobs of its own.
struct Ceilings {
  double copy_bytes = 0;  ///< bytes per second read and written by a copy larger than every cache
  double gemm_flops = 0;  ///< FLOP per second of a large square matrix product in the given precision
};
Ceilings measure_ceilings(Device device, Precision precision, double seconds);

}  // namespace sinkgrad
