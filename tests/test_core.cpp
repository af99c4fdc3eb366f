// The small parts under everything: shapes, random numbers, memory, names, parallel loops, scratch memory.
#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "core/json.h"
#include "core/memory.h"
#include "core/names.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "core/tensor.h"

using namespace sinkgrad;

TEST_CASE("shapes count, index from the end and say what is wrong") {
  const Shape s{2, 3, 5};
  CHECK(s.count() == 30);
  CHECK(s.count(1, 3) == 15);
  CHECK(s[-1] == 5);
  CHECK(s.str() == "(2,3,5)");
  CHECK(Shape{}.count() == 1);
  CHECK(Shape{}.str() == "()");
  CHECK(Shape({4, 0}).count() == 0);
  CHECK(s == Shape({2, 3, 5}));
  CHECK_FALSE(s == Shape({2, 3}));
  CHECK(s.axis(-3, "op") == 0);
  CHECK(s.axis(2, "op") == 2);
  CHECK_THROWS_WITH(s.axis(3, "my op"), Catch::Contains("my op") && Catch::Contains("3") && Catch::Contains("(2,3,5)"));
  CHECK_THROWS_AS(s.axis(-4, "op"), ShapeError);
  CHECK_THROWS_AS(Shape({1, 1, 1, 1, 1, 1, 1}), ShapeError);
  CHECK_THROWS_WITH(Shape({-1}), Catch::Contains("-1"));
}

TEST_CASE("tensors are zero-filled, cloned deeply, and checked for dtype and count") {
  const Tensor t(Shape{2, 2}, DType::f64);
  CHECK(to_doubles(t.view()) == std::vector<double>(4));
  const Tensor copy = t.clone();
  copy.span<double>()[3] = 1;
  CHECK(t.span<double>()[3] == 0);
  CHECK_THROWS_WITH(t.span<float>(), Catch::Contains("f64") && Catch::Contains("f32"));
  CHECK_THROWS_AS(Tensor::of<float>({2}, {1, 2, 3}), ShapeError);
  const Tensor empty(Shape{0, 3});
  CHECK(empty);  // has an address: not an absent input
  CHECK_FALSE(Tensor());
  const View rows = Tensor::of<double>({3, 2}, {1, 2, 3, 4, 5, 6}).view().rows(1, 1);
  CHECK(rows.shape == Shape({0, 2}));
  CHECK_THROWS_AS(t.view().rows(1, 3), ShapeError);
  CHECK_THROWS_AS(t.view().reshaped({3}), ShapeError);
}

TEST_CASE("Philox4x32-10 gives the known answers of Random123") {
  CHECK(philox4x32({0, 0, 0, 0}, 0) == PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, ~uint64_t{0}) == PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822) ==
        PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("streams repeat, and differ by seed, name and step") {
  auto first = [](uint64_t seed, const char* name, uint64_t step) { return RandomStream(seed, name, step).next_u32(); };
  CHECK(first(1, "a", 0) == first(1, "a", 0));
  CHECK(std::set<uint32_t>{first(1, "a", 0), first(2, "a", 0), first(1, "b", 0), first(1, "a", 1)}.size() == 4);
  CHECK(stream_id("dropout/1") < uint64_t{1} << 53);
  CHECK(stream_id("") != stream_id("a"));
}

TEST_CASE("uniform, normal, below and permutation have the right moments and bounds") {
  RandomStream random(3, "moments");
  const int n = 100'000;
  double mean = 0, square = 0, normal_mean = 0, normal_square = 0, fourth = 0;
  std::vector<int> counts(6);
  for (int i = 0; i < n; ++i) {
    const double u = random.uniform(), z = random.normal();
    REQUIRE((u >= 0 && u < 1));
    mean += u / n;
    square += u * u / n;
    normal_mean += z / n;
    normal_square += z * z / n;
    fourth += z * z * z * z / n;
    ++counts.at(random.below(6));
  }
  CHECK(mean == Approx(0.5).margin(0.005));
  CHECK(square == Approx(1.0 / 3).margin(0.005));
  CHECK(normal_mean == Approx(0).margin(0.015));
  CHECK(normal_square == Approx(1).margin(0.02));
  CHECK(fourth == Approx(3).margin(0.15));
  for (int c : counts) CHECK(std::abs(c - n / 6.0) < 600);  // five standard deviations
  CHECK(random.below(1) == 0);
  auto p = random.permutation(1000);
  CHECK_FALSE(std::is_sorted(p.begin(), p.end()));
  std::sort(p.begin(), p.end());
  std::vector<uint32_t> all(1000);
  std::iota(all.begin(), all.end(), 0u);
  CHECK(p == all);
  std::map<std::vector<uint32_t>, int> orders;
  for (int i = 0; i < 30'000; ++i) ++orders[random.permutation(3)];
  CHECK(orders.size() == 6);
  for (const auto& [order, count] : orders) CHECK(std::abs(count - 5000) < 330);  // five standard deviations
}

TEST_CASE("an arena aligns, joins its blocks at reset, and then repeats its addresses") {
  const uint64_t before = memory_stats().reserved_bytes;
  {
    Arena arena(Device::cpu());
    auto step = [&] {
      std::vector<void*> p;
      for (size_t bytes : {1, 100, 3 << 20, 7, 5 << 20}) p.push_back(arena.allocate(bytes));
      return p;
    };
    const auto first = step();
    for (void* p : first) CHECK(reinterpret_cast<uintptr_t>(p) % Arena::kAlignment == 0);
    CHECK(std::set<void*>(first.begin(), first.end()).size() == 5);
    CHECK(arena.active_bytes() == 64 + 128 + (3u << 20) + 64 + (5u << 20));
    CHECK(arena.peak_bytes() == arena.active_bytes());
    CHECK(memory_stats().reserved_bytes - before == arena.reserved_bytes());
    arena.reset();
    CHECK(arena.active_bytes() == 0);
    const auto second = step();
    const uint64_t allocations = memory_stats().system_allocations;
    for (int i = 0; i < 3; ++i) {
      arena.reset();
      CHECK(step() == second);
    }
    CHECK(memory_stats().system_allocations == allocations);
  }
  CHECK(memory_stats().reserved_bytes == before);
}

TEST_CASE("poisoned arenas hand out NaN") {
  Arena arena(Device::cpu());
  set_memory_poison(true);
  const double x = *static_cast<double*>(arena.allocate(8));
  const float y = *static_cast<float*>(arena.allocate(8));
  set_memory_poison(false);
  CHECK(std::isnan(x));
  CHECK(std::isnan(y));
}

TEST_CASE("a recycler gives back memory of the same size class, and forgets at reset") {
  Arena arena(Device::cpu());
  Recycler recycler(arena);
  void *a = recycler.take(100), *b = recycler.take(100);
  CHECK(a != b);
  recycler.give_back(a, 100);
  CHECK(recycler.take(200) != a);  // 100 bytes have a place of 128
  CHECK(recycler.take(128) == a);
  CHECK(recycler.take(128) != a);
  CHECK(recycler.take(0) != nullptr);
  recycler.give_back(b, 100);
  recycler.reset();
  CHECK(recycler.take(100) != b);
}

TEST_CASE("text of a file becomes part of a message in one line") {
  CHECK(printable("two words, \xc3\xa9") == "two words, \xc3\xa9");
  CHECK(printable("\x1b[2J\r\n\t\x7f") == "\\x1b[2J\\x0d\\x0a\\x09\\x7f");
  CHECK(printable(std::string_view("a\0b", 3)) == "a\\x00b");
  CHECK(printable(std::string(80, 'a')) == std::string(80, 'a'));
  CHECK(printable(std::string(81, 'a')) == std::string(80, 'a') + "...");
  CHECK(printable(std::string(79, 'a') + "\xc3\xa9 and more") == std::string(79, 'a') + "...");  // no half characters
}

TEST_CASE("mistyped names find the nearest") {
  CHECK(edit_distance("kitten", "sitting") == 3);
  CHECK(edit_distance("", "abc") == 3);
  CHECK(edit_distance("same", "same") == 0);
  CHECK(nearest_name("sofmax", {"exp", "softmax", "sinkhorn"}) == "softmax");
  CHECK(nearest_name("x", {}).empty());
  CHECK(nearest_name("resnet", {"vit", "translator", "set_transformer"}).empty());  // nothing like it
  CHECK(nearest_name("iter", {"dim", "iterations"}) == "iterations");
  CHECK(nearest_name("it", {"dim", "iterations"}).empty());
  CHECK(nearest_name("iterations_of_sinkhorn", {"iterations"}).empty());
  CHECK(did_you_mean("ad", {"add", "mul"}) == "; did you mean 'add'?");
  CHECK(did_you_mean("ad", {}).empty());
  CHECK(what_there_is("ad", {"add", "mul"}) == "; did you mean 'add'?");
  CHECK(what_there_is("softmax", {"add", "mul"}) == "; there are 'add', 'mul'");
  CHECK(what_there_is("ad", {}).empty());
}

TEST_CASE("a parallel loop covers every index once, in the same chunks for any number of threads") {
  const int before = threads();
  std::vector<std::vector<double>> results;
  for (int n : {1, 2, 3}) {
    set_threads(n);
    CHECK(threads() == n);
    std::vector<int> visits(1003);
    std::vector<double> chunks(101);  // sums whose rounding depends on where a chunk begins
    parallel_for(1003, 10, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        ++visits[static_cast<size_t>(i)];
        chunks[static_cast<size_t>(begin / 10)] += 1.0 / static_cast<double>(i + 1);
      }
    });
    CHECK(visits == std::vector<int>(1003, 1));
    results.push_back(chunks);
  }
  set_threads(before);
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
  parallel_for(0, 10, [&](int64_t, int64_t) { FAIL("an empty loop must not run"); });
  std::atomic<int> calls = 0;
  parallel_for(5, 0, [&](int64_t begin, int64_t end) { calls += static_cast<int>(end - begin); });
  CHECK(calls == 5);
  CHECK(grain_for(1 << 20) == 1);
  CHECK(grain_for(0) == 32768);
}

TEST_CASE("scratch memory nests, is aligned, and settles at one address") {
  auto use = [] {
    ScratchScope outer;
    float* a = outer.take<float>(100'000);
    float* inner_memory;
    {
      ScratchScope inner;
      inner_memory = inner.take<float>(100'000);
      a[99'999] = 1;
      inner_memory[0] = 2;
      CHECK(a[99'999] == 1);
    }
    ScratchScope again;
    CHECK(again.take<float>(10) == inner_memory);  // a closed scope's memory is free
    CHECK(reinterpret_cast<uintptr_t>(a) % 64 == 0);
    return std::make_pair(a, inner_memory);
  };
  use();
  const auto settled = use();
  CHECK(settled.second == settled.first + 100'000);  // one block after the first round
  CHECK(use() == settled);
  CHECK(use() == settled);
}

TEST_CASE("numbers that JSON lacks are strings, whatever their sign bit") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(json_number(0.1).dump() == "0.1");
  CHECK(json_number(infinity).dump() == "\"inf\"");
  CHECK(json_number(-infinity).dump() == "\"-inf\"");
  for (const double x : {nan, -nan}) CHECK(json_number(x).dump() == "\"nan\"");
}
