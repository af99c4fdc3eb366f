// The routines of a training step; their kernels are in ops/cpu/update.cpp and cuda/update.cu.
#include "ops/update.h"

namespace sinkgrad {
namespace cpu {
void score_batch(const BatchScore&);
void measure_gradient(const GradientNorm&);
void update_values(const ValueUpdate&);
void update_running_statistics(const RunningStatistics&);
}  // namespace cpu

// Constant initialisation: a kernel for CUDA may register itself before this file's turn.
constinit Routine<BatchScore> score_batch{"score_batch", cpu::score_batch};
constinit Routine<GradientNorm> measure_gradient{"measure_gradient", cpu::measure_gradient};
constinit Routine<ValueUpdate> update_values{"update_values", cpu::update_values};
constinit Routine<RunningStatistics> update_running_statistics{"update_running_statistics", cpu::update_running_statistics};

}  // namespace sinkgrad
