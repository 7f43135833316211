// One rank of start_bench.py: prints when it came to what, in ns of the machine's monotonic clock.
#include <rueda/rueda.hpp>

#include <cinttypes>
#include <cstdio>
#include <ctime>

namespace {

int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

int main() try {
  int64_t times[4] = {Now()};
  rueda::init();
  times[1] = Now();
  for (int i = 2; i < 4; ++i) {
    rueda::allreduce(1.0, {.name = "one"});
    times[i] = Now();
  }
  std::printf("times %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n", times[0], times[1],
              times[2], times[3]);
  std::fflush(stdout);
  rueda::shutdown();
  return 0;
} catch (const rueda::Error& error) {
  std::fprintf(stderr, "start_phases: %s\n", error.what());
  return 1;
}
