// A child writes what its job returned into a pipe; the parent reads all pipes and waits for the ends.
#include "simt/simt_jobs.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/check.h"

namespace sinkgrad::simt {
namespace {

constexpr double kPatience = 20;  // wall-clock seconds per second of the limit: other work may fill the machine

using Clock = std::chrono::steady_clock;

struct Child {
  size_t job;
  pid_t pid;
  int pipe;
  Clock::time_point start;
  std::string output;
  bool stopped = false;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start).count(); }
};

Child begin(size_t i, double limit, const std::function<std::string(size_t)>& job) {
  int ends[2];
  require<IoError>(pipe(ends) == 0, "pipe: ", std::strerror(errno));
  std::fflush(nullptr);
  const pid_t pid = fork();
  require<IoError>(pid >= 0, "fork: ", std::strerror(errno));
  if (pid == 0) {
    setpgid(0, 0);  // what it starts ends with it
    const auto seconds = static_cast<rlim_t>(limit);
    const rlimit allowed{seconds, seconds + 1};
    setrlimit(RLIMIT_CPU, &allowed);
    close(ends[0]);
    const std::string output = job(i);
    for (size_t at = 0; at < output.size();) {
      const ssize_t n = write(ends[1], output.data() + at, output.size() - at);
      if (n <= 0) _exit(1);
      at += static_cast<size_t>(n);
    }
    _exit(0);  // no destructors: the parent's state is not this process's to clean up
  }
  close(ends[1]);
  return {i, pid, ends[0], Clock::now(), {}};
}

/// Reads what is there; true at the end of the pipe.
bool drain(Child& c) {
  char buffer[4096];
  const ssize_t n = read(c.pipe, buffer, sizeof buffer);
  if (n > 0) c.output.append(buffer, static_cast<size_t>(n));
  return n == 0;
}

JobEnd end(Child& c, double limit) {
  close(c.pipe);
  int status = 0;
  waitpid(c.pid, &status, 0);
  JobEnd e{c.output, "", c.seconds()};
  if (c.stopped || (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU))
    e.death = cat("hang: stopped after ", limit, " s");
  else if (WIFSIGNALED(status))
    e.death = cat("crash: ", strsignal(WTERMSIG(status)));
  else if (WEXITSTATUS(status))
    e.death = cat("crash: ended with status ", WEXITSTATUS(status));
  return e;
}

}  // namespace

void run_jobs(size_t count, int at_once, double limit, const std::function<std::string(size_t)>& job,
              const std::function<void(size_t, const JobEnd&)>& done) {
  std::vector<Child> children;
  for (size_t next = 0; next < count || !children.empty();) {
    while (next < count && children.size() < static_cast<size_t>(at_once)) children.push_back(begin(next++, limit, job));
    std::vector<pollfd> polls;
    for (const Child& c : children) polls.push_back({c.pipe, POLLIN, 0});
    poll(polls.data(), polls.size(), 100);
    for (size_t i = children.size(); i-- > 0;) {
      Child& c = children[i];
      if (!c.stopped && c.seconds() > kPatience * limit) {
        kill(-c.pid, SIGKILL);
        c.stopped = true;
      }
      if (!polls[i].revents || !drain(c)) continue;
      const JobEnd e = end(c, limit);
      const size_t index = c.job;
      children.erase(children.begin() + static_cast<ptrdiff_t>(i));
      done(index, e);
    }
  }
}

}  // namespace sinkgrad::simt
