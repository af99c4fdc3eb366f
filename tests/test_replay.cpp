// When Replay runs, records and plays, seen by a device that only takes notes.
#include <catch2/catch.hpp>

#include "core/replay.h"
#include "core/tensor.h"

using namespace sinkgrad;

namespace {

/// Notes e (execute), r (record), s (suppress), p (play) and the slot.
struct Notes final : Recorder {
  explicit Notes(std::string& log) : text(&log) {}
  void begin(Mode m, int slot) override {
    CHECK_FALSE(inside);
    inside = true;
    mode = m;
    *text += cat(m == Mode::execute ? "e" : m == Mode::record ? "r" : "s", slot, " ");
  }
  bool end() override {
    CHECK(inside);
    inside = false;
    return !(mode == Mode::record && cannot_record);
  }
  void play(int slot) override {
    CHECK_FALSE(inside);
    *text += cat("p", slot, " ");
  }
  std::string* text;
  Mode mode = Mode::execute;
  bool inside = false, cannot_record = false;
};

struct Run {
  std::string log;
  Notes* notes = nullptr;
  Replay replay{[&] {
    auto made = std::make_unique<Notes>(log);
    notes = made.get();
    return made;
  }()};
  int calls = 0;
  /// What the device did for one step of each hash.
  std::string steps(std::initializer_list<uint64_t> hashes) {
    log.clear();
    for (const uint64_t h : hashes)
      replay.run([&] {
        ++calls;
        return h;
      });
    return log;
  }
};

}  // namespace

TEST_CASE("a step that repeats is recorded once for each slot and then played") {
  Run run;
  CHECK(run.steps({7, 7}) == "e0 e1 ");
  CHECK(run.steps({7, 7}) == "r0 p0 r1 p1 ");
  CHECK(run.steps({7, 7, 7}) == "s0 p0 s1 p1 s0 p0 ");
  CHECK(run.replay.played() == 5);
  CHECK(run.calls == 7);
}

TEST_CASE("another step in between runs and leaves the record") {
  Run run;
  run.steps({7, 7, 7, 7});
  CHECK(run.steps({8, 7, 7, 7}) == "s0 e0 s1 p1 s0 p0 s1 p1 ");
  CHECK(run.steps({8, 7}) == "s0 e0 s1 p1 ");
}

TEST_CASE("a step that has changed for good is recorded anew") {
  Run run;
  run.steps({7, 7, 7, 7});
  CHECK(run.steps({8, 8, 8, 8, 8}) == "s0 e0 s1 e1 r0 p0 r1 p1 s0 p0 ");
  // While it is being recorded it changes again.
  Run other;
  CHECK(other.steps({7, 7, 8, 8, 8, 8, 8}) == "e0 e1 r0 e0 e1 r0 p0 r1 p1 s0 p0 ");
}

TEST_CASE("steps that never repeat only run") {
  Run run;
  CHECK(run.steps({1, 2, 3, 4, 5}) == "e0 e1 e0 e1 e0 ");
}

TEST_CASE("what cannot be recorded runs, once and for all") {
  Run reads;
  const auto reading = [&] {
    ++reads.calls;
    if (reads.notes && reads.notes->inside && reads.notes->mode != Recorder::Mode::execute) {
      reads.notes = nullptr;  // it dies with the recorder
      throw NotRepeatable("reads");
    }
    return uint64_t{7};
  };
  for (int i = 0; i < 5; ++i) reads.replay.run(reading);
  CHECK(reads.log == "e0 e1 r0 ");
  CHECK(reads.calls == 6);
  CHECK(reads.replay.played() == 0);

  Run refused;
  const auto refusing = [&] {
    if (refused.notes && refused.notes->inside && refused.notes->mode == Recorder::Mode::record) {
      refused.notes = nullptr;
      throw DeviceError("a library cannot be recorded");
    }
    return uint64_t{7};
  };
  for (int i = 0; i < 4; ++i) refused.replay.run(refusing);
  CHECK(refused.log == "e0 e1 r0 ");

  Run fails;
  fails.notes->cannot_record = true;
  CHECK(fails.steps({7, 7, 7, 7}) == "e0 e1 r0 ");
  CHECK(fails.calls == 5);
}

TEST_CASE("an error leaves the device as it was") {
  Run run;
  run.steps({7, 7, 7, 7});
  CHECK_THROWS_WITH(run.replay.run([]() -> uint64_t { throw ShapeError("bad"); }), "bad");
  CHECK_FALSE(run.notes->inside);
  CHECK(run.steps({7, 7}) == "s1 p1 s0 p0 ");
}

TEST_CASE("on the CPU steps just run") {
  Replay replay(Device::cpu());
  int calls = 0;
  for (int i = 0; i < 5; ++i)
    replay.run([&] {
      ++calls;
      return uint64_t{7};
    });
  CHECK(calls == 5);
  CHECK(replay.played() == 0);
}
