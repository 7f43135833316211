// A training that can be stopped and goes on: what a job needs that a batch system warns before it
// ends it.
//
//     ruedarun -np 4 checkpoint [--steps N] [--step-ms N] [--file PATH]
//
// On SIGUSR1 or SIGTERM, on whichever ranks, all ranks finish the same step, rank 0 saves it, and
// the program ends with status 75: not done yet, start it again. The next one begins there. It fits
// a line through points; with the same number of ranks it comes to the same bits, however often it
// was stopped. Only rank 0 needs to see the file.
//
// Three things make a program stoppable, marked (1) to (3) below.
#include <rueda/rueda.hpp>

#include <signal.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

namespace hvd = rueda;

namespace {

constexpr int kNotDone = 75;  // EX_TEMPFAIL of sysexits.h

struct Options {
  int64_t steps = 200;
  int64_t step_ms = 20;  // what a step would take if it had something to do
  std::string file = "checkpoint";
};

struct State {
  int64_t step = 0;
  std::array<double, 2> line = {0, 0};  // y = line[0] x + line[1]
};

Options ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) throw std::invalid_argument(option + ": unknown, or its value is missing");
    const std::string word = argv[i + 1];
    int64_t number = -1;
    std::from_chars(word.data(), word.data() + word.size(), number);
    if (option == "--file") {
      options.file = word;
    } else if (option == "--steps" && number >= 0) {
      options.steps = number;
    } else if (option == "--step-ms" && number >= 0) {
      options.step_ms = number;
    } else {
      throw std::invalid_argument(option + " " + word + ": --steps N, --step-ms N or --file PATH");
    }
  }
  return options;
}

// (1) A signal can come at any time, so its handler only notes it.
volatile sig_atomic_t warned = 0;

void CatchWarnings() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { warned = signal; };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// The points of one rank in one step, of a line with the slope 3 through (0, -1).
std::array<double, 2> Gradient(const State& state) {
  constexpr int kPoints = 8;
  std::array<double, 2> sum = {0, 0};
  for (int i = 0; i < kPoints; ++i) {
    const auto number = (state.step * hvd::size() + hvd::rank()) * kPoints + i;
    const double x = static_cast<double>(number * 7919 % 1000) / 500 - 1;
    const double error = state.line[0] * x + state.line[1] - (3 * x - 1);
    sum[0] += error * x / kPoints;
    sum[1] += error / kPoints;
  }
  return sum;
}

// (2) Signals don't reach all ranks at the same moment, nor in the same step: they agree each step
// whether any was warned. The two operations travel together.
bool Step(State* state) {
  std::array<double, 2> gradient = Gradient(*state);
  std::array<int32_t, 1> stop = {warned};
  const auto averaged = hvd::allreduce_async_(gradient, {.name = "gradient", .op = hvd::Average});
  const auto agreed = hvd::allreduce_async_(stop, {.name = "stop", .op = hvd::Max});
  hvd::synchronize(averaged);
  hvd::synchronize(agreed);
  for (size_t i = 0; i < gradient.size(); ++i) state->line[i] -= 0.1 * gradient[i];
  ++state->step;
  return stop[0] != 0;
}

[[noreturn]] void Fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// (3) Under another name first: who is killed while it saves leaves the former file whole.
void Save(const State& state, const std::string& path) {
  const std::string fresh = path + ".new";
  std::FILE* file = std::fopen(fresh.c_str(), "w");
  if (file == nullptr) Fail(fresh);
  std::fprintf(file, "%lld %a %a\n", static_cast<long long>(state.step), state.line[0],
               state.line[1]);
  const bool written = std::fflush(file) == 0 && fsync(fileno(file)) == 0;
  if (std::fclose(file) != 0 || !written) Fail(fresh);
  if (std::rename(fresh.c_str(), path.c_str()) != 0) Fail(path);
}

// Rank 0 reads; the others take what it has.
State Load(const std::string& path) {
  State state;
  if (hvd::rank() == 0) {
    if (std::FILE* file = std::fopen(path.c_str(), "r"); file != nullptr) {
      long long step = 0;
      const int read = std::fscanf(file, "%lld %la %la", &step, &state.line[0], &state.line[1]);
      std::fclose(file);
      if (read != 3) throw std::runtime_error(path + ": not written by this program");
      state.step = step;
    } else if (errno != ENOENT) {
      Fail(path);
    }
  }
  std::array<int64_t, 1> step = {state.step};
  hvd::broadcast_(step, 0, {.name = "step"});
  hvd::broadcast_(state.line, 0, {.name = "line"});
  state.step = step[0];
  return state;
}

void Say(const std::string& what, const State& state, const Options& options) {
  if (hvd::rank() != 0) return;
  std::printf("%s step %lld of %lld: y = %.9f x %+.9f\n", what.c_str(),
              static_cast<long long>(state.step), static_cast<long long>(options.steps),
              state.line[0], state.line[1]);
  std::fflush(stdout);
}

int Train(const Options& options) {
  State state = Load(options.file);
  Say("begins at", state, options);
  while (state.step < options.steps) {
    const bool stop = Step(&state);
    std::this_thread::sleep_for(std::chrono::milliseconds(options.step_ms));
    if (!stop || state.step >= options.steps) continue;
    if (hvd::rank() == 0) Save(state, options.file);
    hvd::barrier();  // no rank ends, and ends the job, before it is saved
    Say("warned, saved", state, options);
    return kNotDone;
  }
  Say("done at", state, options);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CatchWarnings();  // first of all: a warning that comes early must not kill
  try {
    const Options options = ParseOptions(argc, argv);
    hvd::init();
    const int status = Train(options);
    hvd::shutdown();
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint: %s\n", error.what());
    return 1;
  }
}
