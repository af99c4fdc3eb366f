// Ranks: the processes of one job, started together by mpirun, that train one model. A program started alone is one rank and never calls MPI.
//
//   const Ranks ranks = Ranks::world();
//   double loss[] = {own_loss};
//   ranks.sum(loss);                                        // the same numbers on all ranks
//   if (ranks.is_first()) print(loss[0]);
//   return Ranks::leave(code, message, print_error);        // last; whether or not something was thrown
//
// All ranks must make the same calls in the same order, on one thread. A call that waits throws RankLost when a rank of this machine has died.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "core/tensor.h"

namespace sinkgrad {

/// Another rank has ended in the middle of the job.
struct RankLost : Error {
  using Error::Error;
};

class Ranks {
 public:
  /// One process by itself.
  Ranks() = default;
  /// The job that this process was started in, which it joins with the first call. InputError when mpirun has started several processes and
  /// this build cannot join them: it has no MPI, or that of another mpirun.
  static Ranks world();
  /// "Open MPI 4.1.4", the library of this build; empty without one.
  static std::string library();
  /// Ends the job, whatever the state it is in: waits until all ranks are here, or ends the others where they cannot come. `print` is called on
  /// the rank that is to say what went wrong (or, with code 0, on the first one), with "rank 2: " where the others know nothing of it.
  /// Returns the exit code of the job: that of the lowest rank which failed.
  static int leave(int code, const std::function<void(const std::string& who)>& print);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Place among the ranks of this machine: which of its GPUs to take.
  int local_rank() const { return local_rank_; }
  bool is_first() const { return rank_ == 0; }
  bool is_alone() const { return size_ == 1; }

  // These return the same on all ranks.
  /// Adds up each value over the ranks, in place.
  void sum(std::span<double> values) const;
  int largest(int value) const;
  /// The text of the lowest rank whose text is not empty; empty when all are.
  std::string first_text(const std::string& text) const;
  /// Gives what the first rank has to all.
  void share(void* memory, size_t bytes) const;
  /// Whether all ranks have the same bits.
  bool agree(uint64_t value) const;
  /// Calls `work` on the first rank while the others wait. Where it throws, all ranks throw.
  template <class Work>
  void on_first(Work&& work) const;

  // Sums of large f32 buffers in host memory, in place, while the caller computes. The buffers may not be touched before finish_sums().
  void start_sum(std::span<float> values) const;
  /// Lets the sums go on: the library works only inside its calls.
  void poll() const;
  void finish_sums() const;

 private:
  int rank_ = 0, size_ = 1, local_rank_ = 0;
};

template <class Work>
void Ranks::on_first(Work&& work) const {
  if (is_alone()) return work();
  std::string problem;
  std::exception_ptr error;
  try {
    if (is_first()) work();
  } catch (const std::exception& e) {
    error = std::current_exception();
    problem = e.what();
  }
  problem = first_text(problem);
  if (error) std::rethrow_exception(error);
  require(problem.empty(), problem);
}

}  // namespace sinkgrad
