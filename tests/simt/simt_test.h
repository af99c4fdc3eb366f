// What the tests of the host executor share: runs under every schedule and several seeds, and the fault that a kernel must be caught at.
#pragma once
#include <catch2/catch.hpp>
#include <optional>
#include <vector>

#include "cuda/kernel.h"

namespace sinkgrad::simt {

/// Restores the executor's settings at the end of a scope.
class SettingsScope {
 public:
  SettingsScope() : saved_(settings()) {}
  ~SettingsScope() { settings() = saved_; }

 private:
  Settings saved_;
};

/// Calls f under every schedule, with several seeds each.
template <class F>
void under_every_schedule(F&& f) {
  SettingsScope scope;
  for (const Schedule schedule : {Schedule::warp_ahead, Schedule::random, Schedule::reverse})
    for (const uint64_t seed : {1, 2, 3, 4, 5}) {
      settings().schedule = schedule;
      settings().seed = seed;
      INFO("schedule " << static_cast<int>(schedule) << ", seed " << seed);
      f();
    }
}

/// The error of f(), if it throws one.
template <class F>
std::optional<KernelError> error_of(F&& f) {
  try {
    f();
  } catch (const KernelError& e) {
    return e;
  }
  return {};
}

/// f() must be caught at this fault under every schedule, and the message must contain all of the words.
template <class F>
void check_caught(Fault fault, const std::vector<std::string>& words, F&& f) {
  under_every_schedule([&] {
    const std::optional<KernelError> e = error_of(f);
    REQUIRE(e);
    INFO(e->what());
    CHECK(name_of(e->fault) == std::string(name_of(fault)));
    for (const std::string& word : words) CHECK_THAT(e->what(), Catch::Contains(word));
  });
}

/// f() must pass under every schedule.
template <class F>
void check_passes(F&& f) {
  under_every_schedule([&] {
    const std::optional<KernelError> e = error_of(f);
    INFO((e ? e->what() : ""));
    CHECK(!e);
  });
}

/// Memory of the host as a kernel argument.
template <class T>
cuda::Span<T> span_of(std::vector<T>& v) {
  return {v.data(), static_cast<int64_t>(v.size())};
}

}  // namespace sinkgrad::simt
