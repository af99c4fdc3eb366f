// A handler that only notes the signal.
#include "tools/ui/stop_signal.h"

#include <csignal>
#include <initializer_list>

namespace sinkgrad {
namespace {

volatile std::sig_atomic_t g_signal = 0;
alignas(64) char g_stack[64 << 10];

}  // namespace

void watch_stop_signals() {
  stack_t stack = {};
  stack.ss_sp = g_stack;
  stack.ss_size = sizeof g_stack;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = [](int signal) { g_signal = signal == SIGUSR1 ? SIGTERM : signal; };
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART | SA_ONSTACK;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
}

int stop_signal() { return g_signal; }

}  // namespace sinkgrad
