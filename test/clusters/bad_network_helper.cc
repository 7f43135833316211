// A rank of the jobs that bad_network_test.py starts.
//
//   bad_network_helper [--idle SECONDS] [--operations N | --work SECONDS] [--in-flight N]
//                      [--bytes-max N] [--seed N]
//
// Says `there` once the job is; does nothing for a while; then reduces integers, in groups of so
// many at a time, until all N are done or rank 0 says that time is up; all sums are checked. Says
// `at work` after the first group. Ends with `done`, how many there were and how long the slowest
// group took. When the job fails it says at once whom it blames and when that was, stays until its
// stdin is closed, and says what another operation gets then.
#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rueda/rueda.hpp"

namespace rueda::testing {
namespace {

constexpr int kFailed = 3;
constexpr int kWrong = 4;

struct Options {
  double idle_s = 0;
  double work_s = 0;
  int operations = 0;
  int in_flight = 1;
  size_t bytes_max = 4096;
  unsigned seed = 0;
};

Options ParseOptions(int argc, char** argv) {
  static const option kOptions[] = {{"idle", required_argument, nullptr, 'd'},
                                    {"work", required_argument, nullptr, 'w'},
                                    {"operations", required_argument, nullptr, 'o'},
                                    {"in-flight", required_argument, nullptr, 'f'},
                                    {"bytes-max", required_argument, nullptr, 'b'},
                                    {"seed", required_argument, nullptr, 's'},
                                    {}};
  Options options;
  int choice;
  while ((choice = getopt_long(argc, argv, "", kOptions, nullptr)) != -1) {
    if (choice == 'd') options.idle_s = std::atof(optarg);
    if (choice == 'w') options.work_s = std::atof(optarg);
    if (choice == 'o') options.operations = std::atoi(optarg);
    if (choice == 'f') options.in_flight = std::atoi(optarg);
    if (choice == 'b') options.bytes_max = std::strtoul(optarg, nullptr, 10);
    if (choice == 's') options.seed = static_cast<unsigned>(std::atoi(optarg));
    if (choice == '?') std::exit(2);
  }
  return options;
}

// In seconds, on a clock that all processes of this machine have.
double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename... Args>
void Say(const char* format, Args... args) {
  std::printf(format, args...);
  std::fflush(stdout);
}

// What rank `rank` brings as the index-th element of the number-th tensor; -1: what all do.
int64_t Value(int64_t number, size_t index, int rank) {
  const int64_t own = 1'000'003 * number + static_cast<int64_t>(index);
  const int64_t n = size();
  return rank >= 0 ? own + 7 * rank : own * n + 7 * n * (n - 1) / 2;
}

class Work {
 public:
  explicit Work(const Options& options) : options_(options), random_(options.seed) {}

  void Run() {
    const double began = Now();
    std::vector<int64_t> over(1);
    for (bool more = options_.operations > 0 || options_.work_s > 0; more;) {
      const double now = Now();
      over[0] =
          rank() == 0 && (options_.work_s > 0 ? now - began >= options_.work_s
                                              : done_ + options_.in_flight >= options_.operations);
      RunGroup(&over);
      if (slowest_ == 0) Say("at work\n");
      slowest_ = std::max(slowest_, Now() - now);
      more = over[0] == 0;
    }
    Say("done %ld, slowest %.3f s\n", done_, slowest_);
  }

 private:
  // Sizes of every order of magnitude, the same on all ranks.
  size_t NextCount() {
    const size_t most = std::max<size_t>(options_.bytes_max / sizeof(int64_t), 1);
    const size_t count = std::max<size_t>(most >> random_() % 10, 1);
    return count - random_() % 2;
  }

  void RunGroup(std::vector<int64_t>* over) {
    std::vector<std::vector<int64_t>> tensors(static_cast<size_t>(options_.in_flight));
    std::vector<Handle<>> handles;
    for (size_t k = 0; k < tensors.size(); ++k) {
      tensors[k].resize(NextCount());
      for (size_t i = 0; i < tensors[k].size(); ++i) tensors[k][i] = Value(done_ + k, i, rank());
      handles.push_back(
          allreduce_async_(tensors[k], {.name = "tensor " + std::to_string(k), .op = Sum}));
    }
    allreduce_(*over, {.name = "over", .op = Sum});
    for (const Handle<>& handle : handles) synchronize(handle);
    for (size_t k = 0; k < tensors.size(); ++k) {
      for (size_t i = 0; i < tensors[k].size(); ++i) {
        if (tensors[k][i] == Value(done_ + k, i, -1)) continue;
        Say("wrong: tensor %ld of %zu elements, element %zu: %ld\n",
            done_ + static_cast<int64_t>(k), tensors[k].size(), i, tensors[k][i]);
        std::exit(kWrong);
      }
    }
    done_ += options_.in_flight;
  }

  const Options options_;
  std::mt19937 random_;
  int64_t done_ = 0;
  double slowest_ = 0;
};

void Idle(double seconds) {
  const double until = Now() + seconds;
  rueda_error error = RUEDA_ERROR_INIT;
  while (Now() < until) {
    detail::Check(rueda_context_error(rueda_current_context(), &error));
    if (error.code != RUEDA_OK) {
      throw Error(error.code, error.message, error.recoverable != 0, error.rank);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

int Main(const Options& options) {
  init();
  std::vector<int64_t> none(1);
  allreduce_(none, {.name = "first", .op = Sum});
  Say("there\n");
  try {
    Idle(options.idle_s);
    Work(options).Run();
    shutdown();
    return 0;
  } catch (const Error& error) {
    Say("failed at %.3f rank %d: %s\n", Now(), error.rank(), error.what());
  }
  for (char byte; read(STDIN_FILENO, &byte, 1) > 0;) {
  }
  try {
    allreduce_(none, {.name = "after it", .op = Sum});
    Say("went on\n");
  } catch (const Error& error) {
    Say("then rank %d: %s\n", error.rank(), error.what());
  }
  return kFailed;
}

}  // namespace
}  // namespace rueda::testing

int main(int argc, char** argv) {
  try {
    return rueda::testing::Main(rueda::testing::ParseOptions(argc, argv));
  } catch (const std::exception& error) {
    std::printf("not begun: %s\n", error.what());
    return 1;
  }
}
