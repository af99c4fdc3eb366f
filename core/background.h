// A thread that does one job at a time beside the caller, such as loading the next batch while a step is computed.
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace sinkgrad {

/// Starts its thread with the first job, at a lower priority than the caller's. Parallel loops inside a job use `threads` threads: one where
/// the caller computes on the CPU meanwhile. One thread at a time may call the members.
class BackgroundWorker {
 public:
  explicit BackgroundWorker(int threads = 1) : threads_(threads) {}
  /// Waits for the job; its error, if nobody asked for it, is lost.
  ~BackgroundWorker();
  BackgroundWorker(const BackgroundWorker&) = delete;
  BackgroundWorker& operator=(const BackgroundWorker&) = delete;

  /// Hands over a job; the one before must have been waited for.
  void start(std::function<void()> job);
  /// Returns when the job is done, or at once when there is none, and throws what the job threw.
  void wait();

 private:
  void run();
  int threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> job_;  // non-empty until it is done
  std::exception_ptr error_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace sinkgrad
