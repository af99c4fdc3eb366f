// Jobs that crash, hang or return much: the driver must say which, and run the others.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <map>

#include "core/check.h"
#include "simt/simt_jobs.h"

using namespace sinkgrad::simt;

TEST_CASE("jobs end each in its own way") {
  const std::string much(300000, 'x');  // more than a pipe holds
  for (const int at_once : {1, 2, 8}) {
    std::map<size_t, JobEnd> ends;
    run_jobs(
        6, at_once, 1,
        [&](size_t i) -> std::string {
          if (i == 1) return much;
          if (i == 2) raise(SIGKILL);
          if (i == 3) _exit(7);
          if (i == 4)
            for (volatile bool on = true; on;) {
            }
          return sinkgrad::cat("job ", i);
        },
        [&](size_t i, const JobEnd& end) {
          CHECK(!ends.count(i));
          ends[i] = end;
        });
    REQUIRE(ends.size() == 6);
    for (const size_t i : {0u, 5u}) {
      CHECK(ends[i].output == sinkgrad::cat("job ", i));
      CHECK(ends[i].death.empty());
    }
    CHECK(ends[1].output == much);
    CHECK(ends[2].death == "crash: Killed");
    CHECK(ends[3].death == "crash: ended with status 7");
    CHECK(ends[4].death == "hang: stopped after 1 s");
  }
}
