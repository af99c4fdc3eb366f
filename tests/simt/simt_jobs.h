// Work in processes of its own: what is run may crash, hang or leave state behind, and both cores are used.
#pragma once
#include <functional>
#include <string>

namespace sinkgrad::simt {

struct JobEnd {
  std::string output;  ///< what the job returned
  std::string death;   ///< "" or how it ended without returning: "crash: Segmentation fault", "hang: stopped after 60 s"
  double seconds = 0;
};

/// Calls job(0) .. job(count - 1), each in a process forked from this one, `at_once` at a time, and done(i, end) here as they end, in any
/// order. A job that has used `limit` seconds of a processor is stopped, with all that it has started. This process must have started no
/// threads.
void run_jobs(size_t count, int at_once, double limit, const std::function<std::string(size_t)>& job,
              const std::function<void(size_t, const JobEnd&)>& done);

}  // namespace sinkgrad::simt
