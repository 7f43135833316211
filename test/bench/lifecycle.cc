// What a job costs that does nothing; what it costs to begin and end one.
#include <dirent.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "test/bench/modes.h"
#include "test/bench/support.h"

namespace rueda::bench {
namespace {

// CPU time and voluntary context switches of all threads of this process so far.
struct Usage {
  double cpu_seconds = 0;
  long voluntary_switches = 0;
};

Usage ReadUsage() {
  Usage usage;
  DIR* tasks = opendir("/proc/self/task");
  if (tasks == nullptr) Die("/proc/self/task can't be read");
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    const std::string task = std::string("/proc/self/task/") + entry->d_name;
    // schedstat: nanoseconds on a CPU, nanoseconds waiting, time slices.
    double on_cpu_ns = 0;
    std::ifstream(task + "/schedstat") >> on_cpu_ns;
    usage.cpu_seconds += on_cpu_ns / 1e9;
    std::ifstream status(task + "/status");
    std::string line;
    while (std::getline(status, line)) {
      if (line.rfind("voluntary_ctxt_switches:", 0) == 0) {
        usage.voluntary_switches += std::strtol(line.c_str() + 24, nullptr, 10);
      }
    }
  }
  closedir(tasks);
  return usage;
}

}  // namespace

// The first one, which loads what the others find loaded, doesn't count.
void Cycles(Bench& bench, int count) {
  std::vector<double> init_us, shutdown_us, both_us;
  for (int i = -1; i < count; ++i) {
    bench.Barrier();
    const double start = NowUs();
    rueda_context* const context = Init("cycle");
    const double middle = NowUs();
    Check(rueda_shutdown(context));
    rueda_context_destroy(context);
    const double end = NowUs();
    if (i < 0) continue;
    init_us.push_back(middle - start);
    shutdown_us.push_back(end - middle);
    both_us.push_back(end - start);
  }
  bench.Report("init", 0, std::move(init_us));
  bench.Report("shutdown", 0, std::move(shutdown_us));
  bench.Report("init_shutdown", 0, std::move(both_us));
}

namespace {

void ReportUsage(Bench& bench, const char* op, double seconds, const Usage& before,
                 const Usage& after) {
  const double cpu = after.cpu_seconds - before.cpu_seconds;
  const long switches = after.voluntary_switches - before.voluntary_switches;
  std::printf(
      "{\"op\": \"%s\", \"np\": %d, \"rank\": %d, \"seconds\": %.1f, \"cpu_ms\": %.3f, "
      "\"cpu_percent\": %.4f, \"voluntary_switches\": %ld, \"switches_per_s\": %.2f}\n",
      op, bench.size(), bench.rank(), seconds, cpu * 1e3, cpu / seconds * 100, switches,
      static_cast<double>(switches) / seconds);
  std::fflush(stdout);
}

}  // namespace

void Idle(Bench& bench, double seconds) {
  bench.Barrier();
  SleepSeconds(10);
  const Usage before = ReadUsage();
  SleepSeconds(seconds);
  ReportUsage(bench, "idle", seconds, before, ReadUsage());
  bench.Barrier();
}

void Late(Bench& bench, double seconds) {
  bench.Barrier();
  if (bench.rank() == 0) SleepSeconds(seconds);
  const Usage before = ReadUsage();
  bench.Barrier();
  if (bench.rank() != 0) ReportUsage(bench, "wait", seconds, before, ReadUsage());
  bench.Barrier();
}

}  // namespace rueda::bench
