// rueda_sim: runs the negotiation of a whole job in one process under virtual time. See
// simulation.h.
#include <getopt.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/base/limits.h"
#include "test/sim/simulation.h"
#include "test/sim/training.h"

namespace {

constexpr char kUsage[] =
    "usage: rueda_sim [--ranks N] [--ranks-per-host R] [--fan-out F] [--seed S] [--steps K]\n"
    "                 [--tensors T] [--seeds COUNT] [--log-words C] [--break WHAT]\n"
    "       rueda_sim --training --ranks N --ranks-per-host R [--fan-out F] [--seed S] [--steps "
    "K]\n"
    "                 [--tensors T]\n"
    "\n"
    "Simulates K steps of T operations of all kinds on N ranks, with the product's own state\n"
    "machines and made-up delays, and checks agreement, validity, uniform errors and liveness.\n"
    "--ranks-per-host 0 (the default) puts all ranks on one host. --fan-out: of the tree of "
    "leaders\n"
    "(32). --seeds runs that many seeds, from S on. The last line is JSON; the same arguments "
    "give\n"
    "the same digest. Exit status 1 when a check failed. --break puts a defect in, to see that "
    "the\n"
    "checks find it: drop-announcement, reorder-plan or change-rejection.\n"
    "\n"
    "--training: allreduces of the same T named tensors in each step, on any number of ranks, to\n"
    "count what comes to rank 0 (messages and bytes, both ways) and what the simulation takes.\n";

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int Train(const rueda::sim::TrainingOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const rueda::sim::TrainingReport report = rueda::sim::RunTraining(options);
  const double seconds = SecondsSince(start);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  for (const std::string& error : report.errors) std::printf("ERROR %s\n", error.c_str());
  const double later_steps = std::max(1, options.steps - 1);
  std::printf(
      "{\"ranks\": %d, \"ranks_per_host\": %d, \"fan_out\": %d, \"seed\": %llu, \"steps\": %d, "
      "\"tensors\": %d, \"ok\": %s, \"digest\": \"%016llx\", \"operations\": %llu, "
      "\"batches\": %llu, \"turns\": %llu, \"depth\": %d, \"root_connections\": %d, "
      "\"root_boot_messages\": %llu, \"root_boot_bytes\": %llu, "
      "\"root_first_step_messages\": %llu, \"root_first_step_bytes\": %llu, "
      "\"root_messages_per_step\": %.1f, \"root_bytes_per_step\": %.0f, \"root_shutdown_bytes\": "
      "%llu, \"virtual_s\": %.3f, "
      "\"real_s\": %.3f, \"peak_mib\": %ld}\n",
      options.ranks, options.ranks_per_host, options.fan_out,
      static_cast<unsigned long long>(options.seed), options.steps, options.tensors,
      report.errors.empty() ? "true" : "false", static_cast<unsigned long long>(report.digest),
      static_cast<unsigned long long>(report.operations),
      static_cast<unsigned long long>(report.batches),
      static_cast<unsigned long long>(report.turns), report.depth, report.connections,
      static_cast<unsigned long long>(report.boot.messages),
      static_cast<unsigned long long>(report.boot.bytes),
      static_cast<unsigned long long>(report.first_step.messages),
      static_cast<unsigned long long>(report.first_step.bytes),
      static_cast<double>(report.later_steps.messages) / later_steps,
      static_cast<double>(report.later_steps.bytes) / later_steps,
      static_cast<unsigned long long>(report.shutdown.bytes), report.virtual_seconds, seconds,
      usage.ru_maxrss / 1024);
  return report.errors.empty() ? 0 : 1;
}

// Says what is wrong with the value, and ends the program.
int64_t Number(const char* option, const char* text, int64_t min, int64_t max) {
  int64_t number = 0;
  if (absl::SimpleAtoi(text, &number) && number >= min && number <= max) return number;
  std::fprintf(stderr, "rueda_sim: %s %s: expected a whole number from %lld to %lld\n", option,
               text, static_cast<long long>(min), static_cast<long long>(max));
  std::exit(2);
}

[[noreturn]] void Refuse(const char* why) {
  std::fprintf(stderr, "rueda_sim: %s\n", why);
  std::exit(2);
}

bool ReadDefect(const char* text, rueda::sim::Defect* defect) {
  using rueda::sim::Defect;
  static const std::map<std::string, Defect> kDefects = {
      {"drop-announcement", Defect::kDropAnnouncement},
      {"reorder-plan", Defect::kReorderPlan},
      {"change-rejection", Defect::kChangeRejection}};
  const auto found = kDefects.find(text);
  if (found == kDefects.end()) return false;
  *defect = found->second;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  rueda::sim::Options options;
  int seeds = 1;
  bool training = false;
  static const option kOptions[] = {{"ranks", required_argument, nullptr, 'n'},
                                    {"ranks-per-host", required_argument, nullptr, 'r'},
                                    {"fan-out", required_argument, nullptr, 'f'},
                                    {"seed", required_argument, nullptr, 's'},
                                    {"steps", required_argument, nullptr, 'k'},
                                    {"tensors", required_argument, nullptr, 't'},
                                    {"seeds", required_argument, nullptr, 'm'},
                                    {"log-words", required_argument, nullptr, 'w'},
                                    {"break", required_argument, nullptr, 'b'},
                                    {"training", no_argument, nullptr, 'T'},
                                    {"help", no_argument, nullptr, 'h'},
                                    {}};
  int choice;
  while ((choice = getopt_long(argc, argv, "", kOptions, nullptr)) != -1) {
    switch (choice) {
      case 'n':
        options.ranks = static_cast<int>(Number("--ranks", optarg, 1, rueda::kRanksMax));
        break;
      case 'r':
        options.ranks_per_host =
            static_cast<int>(Number("--ranks-per-host", optarg, 0, rueda::kLocalRanksMax));
        break;
      case 'f':
        options.fan_out = static_cast<int>(Number("--fan-out", optarg, 1, rueda::kRanksMax));
        break;
      case 's':
        options.seed = static_cast<uint64_t>(Number("--seed", optarg, 0, INT64_MAX));
        break;
      case 'k':
        options.steps = static_cast<int>(Number("--steps", optarg, 0, 1'000'000));
        break;
      case 't':
        options.tensors_per_step = static_cast<int>(Number("--tensors", optarg, 1, 10'000));
        break;
      case 'm':
        seeds = static_cast<int>(Number("--seeds", optarg, 1, 1'000'000'000));
        break;
      case 'w':
        options.log_words = static_cast<int>(Number("--log-words", optarg, 1, 1 << 24));
        break;
      case 'b':
        if (ReadDefect(optarg, &options.defect)) break;
        std::fprintf(stderr, "rueda_sim: there is no defect %s\n\n%s", optarg, kUsage);
        return 2;
      case 'T':
        training = true;
        break;
      case 'h':
        std::fputs(kUsage, stdout);
        return 0;
      default:
        std::fputs(kUsage, stderr);
        return 2;
    }
  }
  if (optind < argc) Refuse(absl::StrCat(argv[optind], ": unexpected").c_str());
  if (options.ranks_per_host > 0 && options.ranks % options.ranks_per_host != 0) {
    Refuse("--ranks is no multiple of --ranks-per-host");
  }
  if (options.ranks_per_host == 0 && options.ranks > rueda::kLocalRanksMax) {
    Refuse("more than 1024 ranks are not on one host: give --ranks-per-host");
  }
  if (!std::has_single_bit(static_cast<unsigned>(std::max(1, options.log_words)))) {
    Refuse("--log-words is no power of two");
  }
  if (training) {
    if (options.ranks_per_host == 0 || options.ranks_per_host == options.ranks) {
      Refuse("--training is of several hosts: give --ranks-per-host");
    }
    if (seeds != 1 || options.log_words != 0 || options.defect != rueda::sim::Defect::kNone) {
      Refuse("--training goes without --seeds, --log-words and --break");
    }
    return Train({options.ranks, options.ranks_per_host, options.fan_out, options.seed,
                  options.steps, options.tensors_per_step});
  }
  bool ok = true;
  for (int i = 0; i < seeds && ok; ++i, ++options.seed) {
    const auto start = std::chrono::steady_clock::now();
    const rueda::sim::Report report = rueda::sim::Run(options);
    const double seconds = SecondsSince(start);
    for (const std::string& error : report.errors) std::printf("ERROR %s\n", error.c_str());
    ok = report.errors.empty();
    if (options.defect != rueda::sim::Defect::kNone && !report.defect_done) {
      std::printf("the defect found no place in this run\n");
    }
    std::printf(
        "{\"ranks\": %d, \"ranks_per_host\": %d, \"seed\": %llu, \"steps\": %d, \"ok\": %s, "
        "\"digest\": \"%016llx\", \"operations\": %llu, \"rejected\": %llu, \"batches\": %llu, "
        "\"turns\": %llu, \"messages\": %llu, \"message_bytes\": %llu, "
        "\"root_messages\": %llu, \"root_message_bytes\": %llu, \"virtual_s\": %.6f, "
        "\"real_s\": %.3f}\n",
        options.ranks, options.ranks_per_host, static_cast<unsigned long long>(options.seed),
        options.steps, ok ? "true" : "false", static_cast<unsigned long long>(report.digest),
        static_cast<unsigned long long>(report.operations),
        static_cast<unsigned long long>(report.rejected),
        static_cast<unsigned long long>(report.batches),
        static_cast<unsigned long long>(report.turns),
        static_cast<unsigned long long>(report.messages),
        static_cast<unsigned long long>(report.message_bytes),
        static_cast<unsigned long long>(report.root_messages),
        static_cast<unsigned long long>(report.root_message_bytes), report.virtual_seconds,
        seconds);
  }
  return ok ? 0 : 1;
}
