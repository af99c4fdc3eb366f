// Signals that ask a run to stop.
#include <catch2/catch.hpp>
#include <csignal>

#include "tools/ui/stop_signal.h"

using namespace sinkgrad;

TEST_CASE("a signal to stop is noted on a stack of its own, and a second one is not caught") {
  watch_stop_signals();
  CHECK(stop_signal() == 0);
  stack_t stack = {};
  REQUIRE(sigaltstack(nullptr, &stack) == 0);
  CHECK((stack.ss_flags & SS_DISABLE) == 0);
  CHECK(stack.ss_size >= size_t{16384});
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before = {}, after = {};
    REQUIRE(sigaction(signal, nullptr, &before) == 0);
    CHECK((before.sa_flags & SA_ONSTACK) != 0);
    raise(signal);
    CHECK(stop_signal() == signal);
    REQUIRE(sigaction(signal, nullptr, &after) == 0);
    CHECK(after.sa_handler == SIG_DFL);
  }
}
