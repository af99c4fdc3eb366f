// The only file that calls MPI. Everything is a non-blocking call that is waited for here, so that a rank which dies is noticed and a waiting
// rank leaves the core to those that compute.
#include "nn/ranks.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <thread>
#include <vector>

#if SINKGRAD_HAS_MPI
#include <mpi.h>
#endif

namespace sinkgrad {
namespace {

/// What Open MPI's mpirun, or MPICH's and Intel's, tells the processes that it starts; `otherwise` without one.
int launcher_says(const char* open_mpi, const char* mpich, int otherwise) {
  for (const char* variable : {open_mpi, mpich})
    if (const char* value = std::getenv(variable)) return std::atoi(value);
  return otherwise;
}
int launched_size() { return launcher_says("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", 1); }
int launched_rank() { return launcher_says("OMPI_COMM_WORLD_RANK", "PMI_RANK", 0); }

}  // namespace

#if SINKGRAD_HAS_MPI

namespace {

/// Of the process, as MPI itself is.
struct Job {
  bool joined = false;
  int rank = 0, size = 1, local_rank = 0;
  MPI_Comm ending = MPI_COMM_NULL;          // for leave() alone: other calls may be under way
  std::vector<std::pair<int, pid_t>> here;  // ranks of this machine and their processes
  std::vector<MPI_Request> sums;
} g_job;

/// The lowest rank of this machine that is alive, or that is not; -1 when there is none.
int lowest(bool alive) {
  for (const auto& [rank, process] : g_job.here)
    if ((kill(process, 0) == 0 || errno != ESRCH) == alive) return rank;
  return -1;
}
int lost_rank() { return lowest(false); }

using std::chrono::microseconds;

/// Waits until `done` says so. False when a rank has died, or when it takes longer than `patience` (0: for ever).
template <class Done>
bool wait_until(Done&& done, microseconds patience = microseconds(0)) {
  constexpr int kSpins = 200, kNapsPerLook = 8;
  constexpr microseconds kShortest(50), kLongest(10'000);
  for (int i = 0; i < kSpins; ++i)
    if (done()) return true;
  microseconds waited(0);  // the sum of the naps and not the clock's: a process that is stopped for a while does not lose its patience
  for (int naps = 1;; ++naps) {
    const microseconds nap = std::clamp(waited / 32, kShortest, kLongest);
    std::this_thread::sleep_for(nap);
    waited += nap;
    if (done()) return true;
    if (naps % kNapsPerLook == 0 && lost_rank() >= 0) return done();
    if (patience.count() > 0 && waited >= patience) return false;
  }
}

bool finished(std::vector<MPI_Request>& requests) {
  int done = 0;
  MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
  return done != 0;
}

void finish(std::vector<MPI_Request>& requests) {
  if (!wait_until([&] { return finished(requests); }))
    throw RankLost(cat("training: rank ", lost_rank(), " of ", g_job.size, " has died, the others cannot go on"));
  requests.clear();
}

void finish(MPI_Request request) {
  std::vector<MPI_Request> one{request};
  finish(one);
}

void share_from(int rank, void* memory, size_t bytes) {
  MPI_Request request;
  MPI_Ibcast(memory, static_cast<int>(bytes), MPI_BYTE, rank, MPI_COMM_WORLD, &request);
  finish(request);
}

void join() {
  int level = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_job.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_job.size);
  MPI_Comm_dup(MPI_COMM_WORLD, &g_job.ending);
  MPI_Comm local;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, g_job.rank, MPI_INFO_NULL, &local);
  int count = 1;
  MPI_Comm_rank(local, &g_job.local_rank);
  MPI_Comm_size(local, &count);
  const int64_t own[] = {g_job.rank, getpid()};
  std::vector<int64_t> all(2 * static_cast<size_t>(count));
  MPI_Allgather(own, 2, MPI_INT64_T, all.data(), 2, MPI_INT64_T, local);
  MPI_Comm_free(&local);
  for (size_t i = 0; i < all.size(); i += 2)  // those in another container cannot be watched
    if (const auto process = static_cast<pid_t>(all[i + 1]); kill(process, 0) == 0 || errno == EPERM)
      g_job.here.emplace_back(static_cast<int>(all[i]), process);
  g_job.joined = true;
}

}  // namespace

Ranks Ranks::world() {
  if (launched_size() > 1 && !g_job.joined) join();
  require<InputError>(g_job.size > 1 || launched_size() == 1, "mpirun: has started ", launched_size(), " processes that ", library(),
                      ", which this sinkgrad was built with, does not see as one job: its own mpirun must start them");
  Ranks ranks;
  ranks.rank_ = g_job.rank;
  ranks.size_ = g_job.size;
  ranks.local_rank_ = g_job.local_rank;
  return ranks;
}

std::string Ranks::library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);  // allowed before MPI_Init
  const std::string all(text, static_cast<size_t>(length));
  return all.substr(0, all.find_first_of(",\n"));
}

int Ranks::leave(int code, const std::function<void(const std::string&)>& print) {
  if (g_job.size == 1) {
    if (launched_rank() == 0) print("");
    if (g_job.joined) MPI_Finalize();
    return code;
  }
  std::vector<int> codes(static_cast<size_t>(g_job.size));
  std::vector<MPI_Request> gathering(1);
  MPI_Iallgather(&code, 1, MPI_INT, codes.data(), 1, MPI_INT, g_job.ending, gathering.data());
  constexpr microseconds kPatience(2'000'000);  // the others may never come to where this one failed
  if (wait_until([&] { return finished(gathering); }, code == 0 ? microseconds(0) : kPatience)) {
    const auto failed = std::find_if(codes.begin(), codes.end(), [](int c) { return c != 0; });
    if (g_job.rank == (failed == codes.end() ? 0 : failed - codes.begin())) print("");
    MPI_Finalize();
    return failed == codes.end() ? 0 : *failed;
  }
  constexpr int kSpoken = 1;  // tag of the message that the sender has said why the job ends
  int spoken = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, kSpoken, g_job.ending, &spoken, MPI_STATUS_IGNORE);
  if (lost_rank() < 0) {
    print(cat("rank ", g_job.rank, ": "));
    MPI_Request sent;
    for (int other = 0; other < g_job.size; ++other)
      if (other != g_job.rank) MPI_Isend(nullptr, 0, MPI_CHAR, other, kSpoken, g_job.ending, &sent);
  } else if (!spoken && lowest(true) == g_job.rank) {  // the others, which saw the same, would say the same
    print("");
  }
  MPI_Abort(MPI_COMM_WORLD, code);
  return code;
}

void Ranks::sum(std::span<double> values) const {
  if (is_alone()) return;
  MPI_Request request;
  MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD, &request);
  finish(request);
}

int Ranks::largest(int value) const {
  if (is_alone()) return value;
  MPI_Request request;
  MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD, &request);
  finish(request);
  return value;
}

void Ranks::share(void* memory, size_t bytes) const {
  if (!is_alone()) share_from(0, memory, bytes);
}

std::string Ranks::first_text(const std::string& text) const {
  if (is_alone()) return text;
  const int speaker = size_ - largest(text.empty() ? 0 : size_ - rank_);
  if (speaker == size_) return "";
  std::string all = text;
  all.resize(static_cast<size_t>(largest(speaker == rank_ ? static_cast<int>(text.size()) : 0)));
  share_from(speaker, all.data(), all.size());
  return all;
}

bool Ranks::agree(uint64_t value) const {
  if (is_alone()) return true;
  uint64_t largest_of[] = {value, ~value};  // the largest complement is that of the smallest
  MPI_Request request;
  MPI_Iallreduce(MPI_IN_PLACE, largest_of, 2, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD, &request);
  finish(request);
  return largest_of[0] == ~largest_of[1];
}

void Ranks::start_sum(std::span<float> values) const {
  if (is_alone()) return;
  constexpr size_t kMost = std::numeric_limits<int>::max();  // MPI counts in int
  for (size_t begin = 0; begin < values.size(); begin += kMost) {
    const auto part = values.subspan(begin, std::min(kMost, values.size() - begin));
    MPI_Iallreduce(MPI_IN_PLACE, part.data(), static_cast<int>(part.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &g_job.sums.emplace_back());
  }
}

void Ranks::poll() const {
  if (!g_job.sums.empty()) finished(g_job.sums);
}

void Ranks::finish_sums() const { finish(g_job.sums); }

#else

Ranks Ranks::world() {
  require<InputError>(
      launched_size() == 1, "mpirun: has started ", launched_size(),
      " processes, but this sinkgrad was built without MPI and cannot share work between them: build it where CMake finds MPI, such as "
      "libopenmpi-dev, or start it alone");
  return {};
}

std::string Ranks::library() { return ""; }

int Ranks::leave(int code, const std::function<void(const std::string&)>& print) {
  if (launched_rank() == 0) print("");
  return code;
}

// One rank has nothing to share.
void Ranks::sum(std::span<double>) const {}
int Ranks::largest(int value) const { return value; }
std::string Ranks::first_text(const std::string& text) const { return text; }
void Ranks::share(void*, size_t) const {}
bool Ranks::agree(uint64_t) const { return true; }
void Ranks::start_sum(std::span<float>) const {}
void Ranks::poll() const {}
void Ranks::finish_sums() const {}

#endif

}  // namespace sinkgrad
