// One mutex guards job, error and end; the job itself runs outside it.
#include "core/background.h"

#include <sys/resource.h>

#include <utility>

#include "core/check.h"
#include "core/parallel.h"

namespace sinkgrad {

BackgroundWorker::~BackgroundWorker() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BackgroundWorker::start(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    require(!job_ && !error_, "background worker: start() needs wait() after the job before");
    job_ = std::move(job);
  }
  if (thread_.joinable())
    changed_.notify_all();
  else
    thread_ = std::thread([this] { run(); });
}

void BackgroundWorker::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !job_; });
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void BackgroundWorker::run() {
  constexpr int kNice = 5;
  ::setpriority(PRIO_PROCESS, 0, kNice);  // of this thread alone, on Linux; a refusal does no harm
  set_threads(threads_);                  // likewise
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return job_ || ending_; });
    if (!job_) return;
    lock.unlock();
    std::exception_ptr error;
    try {
      job_();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    error_ = error;
    job_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace sinkgrad
