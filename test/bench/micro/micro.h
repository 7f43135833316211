// What the files of micro_bench share: how one benchmark is timed, and how it is counted.
#pragma once

#include <benchmark/benchmark.h>

#include <string>

#include "absl/strings/str_cat.h"
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else  // it can be timed, but not counted
#define RUNNING_ON_VALGRIND 0
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(name) static_cast<void>(name)
#endif

namespace rueda::micro {

// How many iterations are counted together. What happens only now and then, such as the next block
// of a deque, thereby gets its share; a power of two, as are the periods of such things.
inline constexpr int kCounted = 1'024;

// Adds a benchmark. `make` sets it up and returns a callable, one call of which is an iteration.
// Google Benchmark times it; under callgrind, exactly `counted` iterations are counted besides,
// into a dump of their own. instructions.py reads its label.
template <typename Make>
void Add(const std::string& name, Make make, int counted = kCounted) {
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    auto body = make();
    body();  // the first time memory is allocated that later ones use again
    if (RUNNING_ON_VALGRIND) {
      const std::string label = absl::StrCat(name, " x ", counted);
      CALLGRIND_ZERO_STATS;
      for (int i = 0; i < counted; ++i) body();
      CALLGRIND_DUMP_STATS_AT(label.c_str());
    }
    for (auto _ : state) body();
  });
}

// One for each file.
void AddSpecs();
void AddMember();
void AddCoordinator();
void AddLog();
void AddNegotiation();
void AddPlanner();
void AddKernels();

}  // namespace rueda::micro
