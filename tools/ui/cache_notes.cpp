// Decoding, sampling and learning report no progress of their own, so a thread tells how long they have been at it.
#include "tools/ui/cache_notes.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tools/ui/progress.h"

namespace sinkgrad {
namespace {

class Making {
 public:
  Making(std::ostream& out, const std::filesystem::path& path, std::chrono::milliseconds interval) : out_(out), path_(path.string()) {
    out_ << "note   making " << path_ << ", once; this may take minutes" << std::endl;
    thread_ = std::thread([this, interval] {
      std::unique_lock lock(mutex_);
      while (!over_.wait_for(lock, interval, [&] { return ended_; })) out_ << "note   still making it after " << elapsed() << std::endl;
    });
  }
  ~Making() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    over_.notify_one();
    thread_.join();
    out_ << "note   that took " << elapsed() << std::endl;
  }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;

 private:
  std::string elapsed() const { return format_duration(std::chrono::duration<double>(std::chrono::steady_clock::now() - started_at_).count()); }

  std::ostream& out_;
  std::string path_;
  std::chrono::steady_clock::time_point started_at_ = std::chrono::steady_clock::now();
  std::mutex mutex_;
  std::condition_variable over_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<void> tell_of_making(std::ostream& out, const std::filesystem::path& path, std::chrono::milliseconds interval) {
  return std::make_shared<Making>(out, path, interval);
}

}  // namespace sinkgrad
