// A process of the elastic jobs that elastic_test.py starts.
//
//   elastic_helper --steps N [--commit N] [--pause MS] [--work N] [--until FILE] [--ballast MIB]
//                  [--own rank|host] [--pending]
//   elastic_helper --regroups N
//
// Trains a model whose every bit depends on the steps, the ranks, their number and their places.
// Says in each membership, as one line, which it is, and when an operation has first been completed
// there. At the end it replays, alone, what the memberships have done, and compares: `done` and the
// digest of the weights, or `wrong`. With --own each rank has a part of an array alone, and a count
// of its own steps, whose copies are with another rank, or on another host: these must come out
// right, too. With --pending the process in slot 0 begins an operation that the others don't, and
// waits for it in all later memberships.
//
// The other way begins so many memberships of the same ranks, one after the other, and says what
// the process has after the tenth and after the last one.
#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rueda/elastic.hpp"

namespace rueda::testing {
namespace {

constexpr int kWrong = 4;

struct Options {
  int steps = 100;
  int commit = 5;
  int pause_ms = 0;
  size_t parameters = 1'000;
  int regroups = 0;
  size_t ballast = 0;  // memory of the process in slot 3, in MiB
  std::string until;   // it ends at the commit after there is such a file
  std::string own;
  size_t elements = 10'007;  // of what ranks have alone
  bool says_commits = false;
  bool is_pending = false;
};

Options ParseOptions(int argc, char** argv) {
  static const option kOptions[] = {
      {"steps", required_argument, nullptr, 's'},    {"commit", required_argument, nullptr, 'c'},
      {"pause", required_argument, nullptr, 'p'},    {"work", required_argument, nullptr, 'w'},
      {"ballast", required_argument, nullptr, 'b'},  {"regroups", required_argument, nullptr, 'r'},
      {"until", required_argument, nullptr, 'u'},    {"own", required_argument, nullptr, 'o'},
      {"elements", required_argument, nullptr, 'e'}, {"say-commits", no_argument, nullptr, 'y'},
      {"pending", no_argument, nullptr, 'n'},        {}};
  Options options;
  int choice;
  while ((choice = getopt_long(argc, argv, "", kOptions, nullptr)) != -1) {
    if (choice == 's') options.steps = std::atoi(optarg);
    if (choice == 'c') options.commit = std::atoi(optarg);
    if (choice == 'p') options.pause_ms = std::atoi(optarg);
    if (choice == 'w') options.parameters = std::strtoul(optarg, nullptr, 10);
    if (choice == 'b') options.ballast = std::strtoul(optarg, nullptr, 10);
    if (choice == 'r') options.regroups = std::atoi(optarg);
    if (choice == 'u') options.until = optarg;
    if (choice == 'o') options.own = optarg;
    if (choice == 'y') options.says_commits = true;
    if (choice == 'n') options.is_pending = true;
    if (choice == 'e') options.elements = std::strtoul(optarg, nullptr, 10);
    if (choice == '?') std::exit(2);
  }
  return options;
}

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename... Args>
void Say(const char* format, Args... args) {
  std::printf(format, args...);
  std::fflush(stdout);
}

// What rank `rank` of `size` brings in a step.
void Gradient(const std::vector<float>& weights, int step, int rank, int size,
              std::vector<float>* gradient) {
  gradient->resize(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const float data = static_cast<float>((step * 31 + rank * 17 + static_cast<int>(i)) % 101);
    (*gradient)[i] = (weights[i] - data / 7) / static_cast<float>(size);
  }
}

void Update(std::vector<float>* weights, const std::vector<float>& sum) {
  for (size_t i = 0; i < weights->size(); ++i) (*weights)[i] -= 0.1f * sum[i];
}

// Where the ranks of a membership are: by rank, the number of the first rank on its host. Two names
// of one machine are one, as its ranks share memory; hosts of the tests are network namespaces, or
// fake.
std::vector<int32_t> Places() {
  char name[64] = "";
  (void)!readlink("/proc/self/ns/net", name, sizeof name - 1);
  const char* const fakes = std::getenv("RUEDA_HOSTS_FAKE");
  const int fake = fakes == nullptr ? 0 : rueda::rank() * std::atoi(fakes) / rueda::size();
  const std::vector<std::string> names =
      rueda::allgather_object(name + std::to_string(fake), {.name = "places"});
  std::vector<int32_t> places;
  for (const std::string& each : names) {
    places.push_back(
        static_cast<int32_t>(std::find(names.begin(), names.end(), each) - names.begin()));
  }
  return places;
}

// By one process: the gradients of a host's ranks are added in the order of the ranks, and then
// those of the hosts. `history`: of each step how many ranks there were, and their places.
std::vector<float> Replay(
    const std::vector<int32_t>& history, size_t parameters,
    const std::function<void(int step, const std::vector<float>& weights)>& after = {}) {
  std::vector<float> weights(parameters), own;
  int step = 0;
  for (size_t at = 0; at < history.size(); at += static_cast<size_t>(history[at]) + 1, ++step) {
    const int size = history[at];
    std::vector<std::vector<float>> partials(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) {
      Gradient(weights, step, rank, size, &own);
      std::vector<float>& partial =
          partials[static_cast<size_t>(history[at + 1 + static_cast<size_t>(rank)])];
      if (partial.empty()) partial.resize(own.size(), -0.0f);
      for (size_t i = 0; i < own.size(); ++i) partial[i] += own[i];
    }
    std::vector<float> sum(parameters, -0.0f);
    for (const std::vector<float>& partial : partials) {
      for (size_t i = 0; i < partial.size(); ++i) sum[i] += partial[i];
    }
    Update(&weights, sum);
    if (after) after(step, weights);
  }
  return weights;
}

// What one rank has alone.
struct Alone {
  Alone(size_t elements, elastic::Redundancy redundancy)
      : part(elements, redundancy), steps(0, redundancy) {}
  elastic::Sharded<int64_t> part;
  elastic::Own<int64_t> steps;

  void Step(int step) {
    for (size_t i = 0; i < part.local.size(); ++i) {
      part.local[i] += (step + 1) * static_cast<int64_t>(part.begin() + i);
    }
    ++steps.value;
  }
  // Collective. `rank_steps`: that all ranks have done together.
  bool IsRight(int step, int64_t rank_steps) {
    const int64_t sum = int64_t{step} * (step + 1) / 2;
    bool right = part.local.size() == part.end() - part.begin();
    for (size_t i = 0; i < part.local.size(); ++i) {
      right &= part.local[i] == sum * static_cast<int64_t>(part.begin() + i);
    }
    for (const int64_t inherited : std::exchange(steps.inherited, {})) steps.value += inherited;
    const int64_t elements = static_cast<int64_t>(part.local.size());
    const int64_t all = rueda::allreduce(steps.value, {.name = "own steps", .op = rueda::Sum});
    const int64_t whole = rueda::allreduce(elements, {.name = "own elements", .op = rueda::Sum});
    right &= all == rank_steps && whole == static_cast<int64_t>(part.total());
    if (!right) {
      Say("its own: elements %s, %lld steps of %lld, %lld elements\n", right ? "right" : "wrong",
          static_cast<long long>(all), static_cast<long long>(rank_steps),
          static_cast<long long>(whole));
    }
    return right;
  }
};

uint64_t Digest(const std::vector<float>& weights) {
  uint64_t digest = 1469598103934665603u;  // FNV-1a
  for (const float weight : weights) {
    uint32_t bits;
    std::memcpy(&bits, &weight, sizeof bits);
    digest = (digest ^ bits) * 1099511628211u;
  }
  return digest;
}

int CountFiles(const char* folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// In KiB, of a line of /proc/self/status.
long Memory(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::atol(line.c_str() + name.size() + 1);
  }
  return -1;
}

int Regroup(int regroups) {
  std::vector<float> values(100'000, 1.0f);
  for (int i = 1; i <= regroups; ++i) {
    rueda::allreduce_(values, {.name = "values", .op = rueda::Max});
    if (const rueda_status status = rueda_regroup(rueda_current_context(), 0); status != RUEDA_OK) {
      Say("failed: %s\n", rueda_last_error());
      return kWrong;
    }
    if (i != 10 && i != regroups) continue;
    Say("after %d: %d descriptors, %d threads, %ld KiB private, %ld KiB shared, membership %llu\n",
        i, CountFiles("/proc/self/fd"), CountFiles("/proc/self/task"), Memory("RssAnon"),
        Memory("RssShmem"), static_cast<unsigned long long>(rueda::membership()));
  }
  rueda::shutdown();
  return 0;
}

int Main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  rueda::init();
  const char* const slot = std::getenv("RUEDA_RANK");
  const std::string place = slot == nullptr ? "" : slot;
  const bool is_heavy = place == "3";
  const std::vector<char> ballast(is_heavy ? options.ballast << 20 : 0, 1);
  if (options.regroups > 0) return Regroup(options.regroups);
  std::vector<float> weights(options.parameters), gradient;
  std::vector<int32_t> history;  // see Replay
  int step = 0;
  Alone alone(options.elements,
              options.own == "host" ? elastic::Redundancy::kHost : elastic::Redundancy::kRank);
  std::optional<elastic::State> made;
  if (options.own.empty()) {
    made.emplace(weights, history, step);
  } else {
    made.emplace(weights, history, step, alone.part, alone.steps);
  }
  elastic::State& state = *made;
  int resets = 0, committed = 0;
  bool right = true;
  std::map<int, uint64_t> seen;  // by step: digests
  std::optional<Handle<std::vector<float>>> pending;
  state.register_reset_callback([&] { ++resets; });
  const bool wanted = elastic::run(state, [&] {
    const rueda_membership info = elastic::membership_info();
    if (pending.has_value()) (void)rueda::synchronize(*pending);
    const std::vector<int32_t> places = Places();
    bool is_first = true;
    bool is_over = false;
    if (step < committed) Say("went back from the commit of step %d to %d\n", committed, step);
    while (step < options.steps && !is_over) {
      Gradient(weights, step, rueda::rank(), rueda::size(), &gradient);
      rueda::allreduce_(gradient, {.name = "gradient", .op = rueda::Sum});
      Update(&weights, gradient);
      history.push_back(rueda::size());
      history.insert(history.end(), places.begin(), places.end());
      alone.Step(step);
      seen[step] = Digest(weights);
      if (is_first) {
        Say("membership %llu rank %d of %d survivors %d step %d pid %d at %.6f\n",
            static_cast<unsigned long long>(info.number), info.rank, info.ranks, info.survivors,
            step, getpid(), Now());
        if (options.is_pending && place == "0") {
          pending = rueda::allreduce_async(weights, {.name = "pending"});
        }
      }
      is_first = false;
      if (options.pause_ms > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(options.pause_ms));
      }
      if (++step % options.commit != 0) continue;
      committed = step;
      state.commit();
      if (options.says_commits && info.rank == 0) Say("has committed step %d\n", step);
      const int own = options.until.empty() ? 0 : access(options.until.c_str(), F_OK) == 0;
      is_over = rueda::allreduce(own, {.name = "end", .op = rueda::Max}) != 0;
    }
    int64_t rank_steps = 0;
    for (size_t at = 0; at < history.size(); at += static_cast<size_t>(history[at]) + 1) {
      rank_steps += history[at];
    }
    right = options.own.empty() || alone.IsRight(step, rank_steps);
  });
  if (!wanted) {
    Say("dismissed\n");
    return 0;
  }
  bool told = false;
  right &= weights ==
           Replay(history, options.parameters, [&](int at, const std::vector<float>& replayed) {
             if (told || !seen.contains(at) || seen[at] == Digest(replayed)) return;
             told = true;
             Say("step %d has other weights than its replay\n", at);
           });
  Say("%s %016llx after %d resets\n", right ? "done" : "wrong",
      static_cast<unsigned long long>(Digest(weights)), resets);
  rueda::shutdown();
  return right ? 0 : kWrong;
}

}  // namespace
}  // namespace rueda::testing

int main(int argc, char** argv) {
  try {
    return rueda::testing::Main(argc, argv);
  } catch (const std::exception& error) {
    rueda::testing::Say("failed: %s\n", error.what());
    return 3;
  }
}
