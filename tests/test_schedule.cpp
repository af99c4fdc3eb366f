// Learning-rate schedules against the tables in nn/schedule.h, update by update.
#include <catch2/catch.hpp>
#include <cmath>

#include "nn/schedule.h"

using namespace sinkgrad;
using Kind = ScheduleOptions::Kind;

TEST_CASE("fault 51: inverse_sqrt with warm-up, the first updates as in fairseq") {
  const ScheduleOptions options{.kind = Kind::inverse_sqrt, .lr = 5e-4, .warmup = 4};
  const double expected[] = {0, 1.25e-4, 2.5e-4, 3.75e-4, 5e-4, 4.472135955e-4, 4.082482905e-4, 3.779644730e-4};
  for (int u = 0; u < 8; ++u) CHECK(std::abs(learning_rate(options, u, 0) - expected[u]) <= 1e-13);
}

TEST_CASE("fault 51: step decay acts once the milestone's number of epochs is done") {
  ScheduleOptions options{.kind = Kind::step, .lr = 1, .milestones = {250}};
  for (const auto& [epoch, lr] : {std::pair{248, 1.0}, {249, 1.0}, {250, 0.1}, {251, 0.1}}) {
    CAPTURE(epoch);
    CHECK(learning_rate(options, 1000, epoch) == Approx(lr));
  }
  // The paper's MNIST runs: a tenth from the start of epochs 35 and 41, counted from 1.
  options = {.kind = Kind::step, .lr = 1e-3, .milestones = {34, 40}};
  for (const auto& [number, lr] : {std::pair{34, 1e-3}, {35, 1e-4}, {40, 1e-4}, {41, 1e-5}, {45, 1e-5}}) {
    CAPTURE(number);
    CHECK(learning_rate(options, 0, number - 1) == Approx(lr));
  }
}

TEST_CASE("cosine goes from lr to min_lr over the whole run") {
  const ScheduleOptions options{.kind = Kind::cosine, .lr = 1, .min_lr = 0.2, .total = 100};
  CHECK(learning_rate(options, 0, 0) == Approx(1));
  CHECK(learning_rate(options, 25, 0) == Approx(0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2));
  CHECK(learning_rate(options, 50, 0) == Approx(0.6));
  CHECK(learning_rate(options, 99, 0) > 0.2);
  CHECK(learning_rate(options, 100, 0) == Approx(0.2));
  CHECK(learning_rate(options, 1000, 0) == Approx(0.2));
}

TEST_CASE("every schedule can warm up") {
  for (const Kind kind : {Kind::constant, Kind::step, Kind::cosine, Kind::inverse_sqrt}) {
    const ScheduleOptions options{.kind = kind, .lr = 1, .warmup = 10, .warmup_lr = 0.5, .total = 50};
    CAPTURE(static_cast<int>(kind));
    CHECK(learning_rate(options, 0, 0) == Approx(0.5));
    CHECK(learning_rate(options, 5, 0) == Approx(0.75));
    CHECK(learning_rate(options, 10, 0) == Approx(1));
  }
  CHECK(learning_rate({.lr = 0.3}, 12345, 99) == 0.3);
  // Without warm-up inverse_sqrt starts at lr and stays finite.
  CHECK(learning_rate({.kind = Kind::inverse_sqrt, .lr = 1}, 0, 0) == 1);
  CHECK(learning_rate({.kind = Kind::inverse_sqrt, .lr = 1}, 4, 0) == 0.5);
}
