// The barriers of the kernels, and the proof that each is needed: with any one of them skipped, some case must fail.
#pragma once
#include "simt/simt_cases.h"

namespace sinkgrad::simt {

enum class BarrierTask : uint8_t {
  list,    ///< print the barriers and the kernels that reach them
  mutate,  ///< skip each in turn and print how that was noticed
};
struct MutantOptions : RunOptions {
  BarrierTask task = BarrierTask::mutate;
  bool markdown = false;
  std::string sources;  ///< the folder of the kernels: its barriers that no case reaches count as unnoticed; "": not searched
};

/// Prints a table. Returns the number of barriers that nobody misses, and of cases that fail with all barriers in place.
int examine_barriers(const std::vector<Case>& cases, const MutantOptions& options);

}  // namespace sinkgrad::simt
