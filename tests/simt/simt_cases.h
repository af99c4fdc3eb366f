// What the driver runs: the samples of the ops, compared with the CPU, and the test cases of other programs that run kernels.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace sinkgrad::simt {

/// What came of a case.
struct CaseEnd {
  std::string failure;                                 ///< "" or sentences
  std::string noticed;                                 ///< how a failure showed: the name of a fault, "wrong result", "crash", "hang"
  std::map<std::string, std::set<std::string>> sites;  ///< barriers reached, with the kernels that reached them
  double seconds = 0;
};

struct Case {
  std::string group;  ///< an op, or a program
  std::string name;   ///< "sample 3", or a test case
  std::function<CaseEnd()> run;
};

/// One case per sample of an op; of `dtype` alone, if given.
std::vector<Case> cases_of_op(const std::string& op, std::optional<DType> dtype);
/// One case per test case of a Catch2 program that is linked with the executor.
std::vector<Case> cases_of_program(const std::string& path);

struct RunOptions {
  int jobs = 1;
  double time_limit = 120;  ///< of one case, in seconds of a processor
};
/// Runs cases, each in a process of its own, and calls done(i, end) as they end, in any order.
void run_cases(const std::vector<Case>& cases, const RunOptions& options, const std::function<void(size_t, const CaseEnd&)>& done);
/// Runs cases without the barrier `site`, in this order and in one process, until one fails. Names that one in front of the failure.
CaseEnd run_without(const std::string& site, const std::vector<const Case*>& cases);

std::string to_text(const CaseEnd& end);
CaseEnd case_end_of(const std::string& text);

}  // namespace sinkgrad::simt
