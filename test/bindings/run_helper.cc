// A program that makes ranks of itself, for run_test: run_helper WHAT.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "rueda/run.hpp"

namespace {

// Written at the end, where ranks never come.
std::string out;

template <typename... Args>
void Print(const char* format, Args... args) {
  char line[4096];
  out.append(line, static_cast<size_t>(std::snprintf(line, sizeof line, format, args...)));
}

struct Place {
  int rank, size;
  double sum;
};

void Results() {
  const std::vector<Place> places = rueda::run(
      [] {
        std::vector<double> sum = {static_cast<double>(rueda::rank())};
        rueda::allreduce_(sum, {.name = "sum", .op = rueda::Sum});
        return Place{rueda::rank(), rueda::size(), sum[0]};
      },
      3);
  for (const Place& place : places) Print("%d of %d: %g\n", place.rank, place.size, place.sum);
  // Another one, which knows what the first has returned.
  const std::vector<std::string> texts = rueda::run(
      [&] {
        return std::string(100'000, static_cast<char>('a' + rueda::rank())) +
               std::to_string(places.at(2).sum);
      },
      2);
  for (const std::string& text : texts) Print("%zu %s\n", text.size(), text.c_str() + 99'999);
  rueda::run([] { rueda::barrier(); }, 1);
}

// Prints what run() throws.
template <typename Fn>
void Failing(Fn fn, int ranks) {
  try {
    rueda::run(fn, ranks);
    Print("no exception\n");
  } catch (const rueda::Error& error) {
    Print("%s of rank %d: %s\n", rueda_status_name(error.status()), error.rank(), error.what());
  }
}

void Failures() {
  Failing(
      [] {
        if (rueda::rank() == 1) throw std::out_of_range("what rank 1 says");
        rueda::barrier();
      },
      3);
  Failing(
      [] {
        if (rueda::rank() == 2) raise(SIGKILL);
        rueda::barrier();
      },
      3);
  Failing(
      [] {
        std::vector<float> values(static_cast<size_t>(rueda::rank() + 1));
        rueda::allreduce_(values, {.name = "x"});
      },
      2);
  // The others learn of the end of the membership first, and fail first.
  Failing(
      [] {
        if (rueda::rank() > 0) rueda::barrier();
        std::vector<float> values(3);
        const auto handle = rueda::allreduce_async_(values, {.name = "x"});
        throw std::out_of_range("what rank 0 says");
      },
      3);
  Failing([] {}, 0);
  Failing([] {}, 1025);
}

// The ranks come by the init() before too.
void Initialized() {
  rueda::init();
  for (const int sum : rueda::run(
           [] {
             std::vector<int> values = {rueda::rank() + 1};
             rueda::allreduce_(values, {.name = "x", .op = rueda::Sum});
             return values[0];
           },
           3)) {
    Print("%d\n", sum);
  }
  Print("%d of %d\n", rueda::rank(), rueda::size());
  rueda::shutdown();
}

// Where it is refused, init() still works.
void Launched() {
  Failing([] {}, 2);
  rueda::init();
  Print("rank %d of %d\n", rueda::rank(), rueda::size());
  Failing([] {}, 2);
  rueda::shutdown();
}

}  // namespace

int main(int, char** argv) {
  const std::string what = argv[1];
  if (what == "results") {
    Results();
  } else if (what == "initialized") {
    Initialized();
  } else if (what == "failures") {
    Failures();
  } else if (what == "launched") {
    Launched();
  } else if (what == "lost") {  // a program that ends before it comes to the call
    if (std::getenv("_RUEDA_RUN") != nullptr) return 5;
    Failing([] {}, 2);
  } else {  // "sleep": ranks that write their process numbers, and stay
    rueda::run(
        [] {
          std::printf("%d\n", getpid());
          std::fflush(stdout);
          for (;;) pause();
        },
        3);
  }
  std::fputs(out.c_str(), stdout);
  return 0;
}
