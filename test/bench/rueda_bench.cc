// rueda_bench: how fast the operations are, in the manner of the OSU benchmarks. Run it under
// ruedarun.
//
// Every figure is for the full thing: a named operation, negotiated and checked.
#include <dirent.h>
#include <getopt.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rueda/rueda.h"

namespace {

constexpr char kUsage[] =
    "usage: ruedarun -np N rueda_bench [options]\n"
    "\n"
    "  --op allreduce|broadcast|allgather|barrier   blocking operation to time (default "
    "allreduce)\n"
    "  --bytes LIST      sizes, such as 4,4K,1M (default "
    "4,256,4K,16K,64K,256K,1M,4M,16M,64M,256M);\n"
    "                    of float32 data on each rank\n"
    "  --many COUNTxSIZE instead: COUNT asynchronous allreduces of SIZE each, submitted and waited "
    "for\n"
    "                    as one; may be given several times\n"
    "  --cycles N        instead: N times, inits and shuts down one more context of all ranks\n"
    "  --registered      tensors in memory of rueda_mem_alloc\n"
    "  --iterations N    instead of a number that suits the size\n"
    "  --timeline FILE   each measurement in 20 rounds of N, with the timeline off and on by "
    "turns: "
    "what it\n"
    "                    costs\n"
    "  --idle SECONDS    instead: after 10 s, keeps the job idle for so long and prints each "
    "rank's CPU\n"
    "                    time and context switches\n"
    "  --json            one JSON line a measurement instead of a table\n";

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "rueda_bench: %s\n", what.c_str());
  std::exit(1);
}

void Check(rueda_status status) {
  if (status != RUEDA_OK) Die(rueda_last_error());
}

double NowUs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

void SleepSeconds(double seconds) {
  timespec time = {
      static_cast<time_t>(seconds),
      static_cast<long>((seconds - static_cast<double>(static_cast<time_t>(seconds))) * 1e9)};
  while (nanosleep(&time, &time) != 0) {
  }
}

// "4", "64K", "1M", "2G", in bytes.
size_t ParseSize(const std::string& text) {
  char* end = nullptr;
  const unsigned long long number = std::strtoull(text.c_str(), &end, 10);
  size_t unit = 1;
  if (*end == 'K' || *end == 'k') unit = size_t{1} << 10;
  if (*end == 'M' || *end == 'm') unit = size_t{1} << 20;
  if (*end == 'G' || *end == 'g') unit = size_t{1} << 30;
  if (end == text.c_str() || (unit == 1 ? *end != 0 : end[1] != 0)) Die("not a size: " + text);
  return number * unit;
}

int ParseCount(const std::string& text) {
  char* end = nullptr;
  const long number = std::strtol(text.c_str(), &end, 10);
  if (end == text.c_str() || *end != 0 || number < 1 || number > 1'000'000) {
    Die("expected a number from 1 to 1000000, not " + text);
  }
  return static_cast<int>(number);
}

struct Options {
  std::string op = "allreduce";
  std::vector<size_t> bytes = {4,       256,     4 << 10,  16 << 10, 64 << 10, 256 << 10,
                               1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20};
  std::vector<std::pair<int, size_t>> many;
  bool registered = false;
  int iterations = 0;
  int cycles = 0;
  double idle_seconds = 0;
  std::string timeline;
  bool json = false;
};

Options Parse(int argc, char** argv) {
  Options options;
  static const option kOptions[] = {{"op", required_argument, nullptr, 'o'},
                                    {"bytes", required_argument, nullptr, 'b'},
                                    {"many", required_argument, nullptr, 'm'},
                                    {"cycles", required_argument, nullptr, 'c'},
                                    {"registered", no_argument, nullptr, 'r'},
                                    {"iterations", required_argument, nullptr, 'i'},
                                    {"idle", required_argument, nullptr, 'd'},
                                    {"timeline", required_argument, nullptr, 't'},
                                    {"json", no_argument, nullptr, 'j'},
                                    {"help", no_argument, nullptr, 'h'},
                                    {}};
  int choice;
  while ((choice = getopt_long(argc, argv, "", kOptions, nullptr)) != -1) {
    switch (choice) {
      case 'o':
        options.op = optarg;
        break;
      case 'b': {
        options.bytes.clear();
        std::string list = optarg;
        for (char* item = std::strtok(list.data(), ","); item != nullptr;
             item = std::strtok(nullptr, ",")) {
          options.bytes.push_back(ParseSize(item));
        }
        break;
      }
      case 'm': {
        const std::string text = optarg;
        const size_t x = text.find('x');
        if (x == std::string::npos) Die("--many expects COUNTxSIZE, such as 200x4K");
        options.many.emplace_back(ParseCount(text.substr(0, x)), ParseSize(text.substr(x + 1)));
        break;
      }
      case 'c':
        options.cycles = ParseCount(optarg);
        break;
      case 'r':
        options.registered = true;
        break;
      case 'i':
        options.iterations = ParseCount(optarg);
        break;
      case 'd':
        options.idle_seconds = std::atof(optarg);
        if (!(options.idle_seconds > 0)) Die("--idle expects a number of seconds above 0");
        break;
      case 't':
        options.timeline = optarg;
        break;
      case 'j':
        options.json = true;
        break;
      case 'h':
        std::fputs(kUsage, stdout);
        std::exit(0);
      default:
        std::fputs(kUsage, stderr);
        std::exit(2);
    }
  }
  if (optind < argc || (options.op != "allreduce" && options.op != "broadcast" &&
                        options.op != "allgather" && options.op != "barrier")) {
    std::fputs(kUsage, stderr);
    std::exit(2);
  }
  return options;
}

int IterationsFor(const Options& options, size_t bytes) {
  if (options.iterations > 0) return options.iterations;
  return bytes <= 4 << 10    ? 20'000
         : bytes <= 64 << 10 ? 2'000
         : bytes <= 1 << 20  ? 200
         : bytes <= 16 << 20 ? 30
         : bytes <= 64 << 20 ? 8
                             : 5;
}

// One rank's float32 tensor.
class Buffer {
 public:
  Buffer(rueda_context* context, size_t bytes, bool registered) : registered_(registered) {
    if (registered) {
      Check(rueda_mem_alloc(context, std::max<size_t>(bytes, 1), &data_));
    } else {
      data_ = std::malloc(std::max<size_t>(bytes, 1));
      if (data_ == nullptr) Die("out of memory");
    }
    std::memset(data_, 0, bytes);
    shape_ = static_cast<int64_t>(bytes / sizeof(float));
    tensor_ = {data_, {RUEDA_CPU, 0}, 1, RUEDA_FLOAT32, &shape_, nullptr, 0};
  }
  Buffer(const Buffer&) = delete;
  ~Buffer() {
    if (registered_) {
      Check(rueda_mem_free(data_));
    } else {
      std::free(data_);
    }
  }
  const rueda_tensor* tensor() const { return &tensor_; }
  float* data() { return static_cast<float*>(data_); }
  int64_t elements() const { return shape_; }

 private:
  bool registered_;
  void* data_ = nullptr;
  int64_t shape_ = 0;
  rueda_tensor tensor_;
};

rueda_context* Init(const char* name) {
  rueda_init_options init = RUEDA_INIT_OPTIONS_INIT;
  init.flags = RUEDA_INIT_READ_ENVIRONMENT;
  init.name = name;
  rueda_context* context = nullptr;
  Check(rueda_init(RUEDA_VERSION, &init, &context));
  return context;
}

class Bench {
 public:
  Bench(rueda_context* context, const Options& options)
      : context_(context),
        options_(options),
        np_(rueda_size(context)),
        rank_(rueda_rank(context)) {}

  void Blocking(size_t bytes);
  void Many(int count, size_t bytes);
  void Cycles(int count);
  void Idle(double seconds);

 private:
  struct Loop {
    std::string op;
    size_t bytes = 0;
    int iterations = 1;
    int warm = 0;          // iterations before those, which don't count
    bool barrier = false;  // before each
    std::function<void()> once;
  };
  void Measure(const Loop& loop);
  void Compare(const Loop& loop);
  std::vector<double> TimesOf(const Loop& loop);
  void Report(const std::string& op, size_t bytes, std::vector<double> times_us);
  void Barrier();

  rueda_context* const context_;
  const Options& options_;
  const int np_;
  const int rank_;
  bool header_printed_ = false;
};

void Bench::Barrier() {
  rueda_operation operation = RUEDA_OPERATION_INIT;
  Check(rueda_execute(context_, &operation, 1, RUEDA_FOREVER, nullptr));
}

void Bench::Report(const std::string& op, size_t bytes, std::vector<double> times_us) {
  if (rank_ != 0) return;
  std::sort(times_us.begin(), times_us.end());
  const double p50 = times_us[times_us.size() / 2];
  const double p99 = times_us[times_us.size() * 99 / 100];
  const double bandwidth = static_cast<double>(bytes) / p50 / 1e3;
  if (options_.json) {
    std::printf(
        "{\"op\": \"%s\", \"np\": %d, \"bytes\": %zu, \"p50_us\": %.2f, \"min_us\": %.2f, "
        "\"p99_us\": %.2f, \"algbw_GBps\": %.3f}\n",
        op.c_str(), np_, bytes, p50, times_us[0], p99, bandwidth);
  } else {
    if (!header_printed_) {
      std::printf("# %d ranks, %ld cores\n%-24s %12s %12s %12s %12s %10s\n", np_,
                  sysconf(_SC_NPROCESSORS_ONLN), "operation", "bytes", "p50 us", "min us", "p99 us",
                  "GB/s");
      header_printed_ = true;
    }
    std::printf("%-24s %12zu %12.2f %12.2f %12.2f %10.3f\n", op.c_str(), bytes, p50, times_us[0],
                p99, bandwidth);
  }
  std::fflush(stdout);
}

std::vector<double> Bench::TimesOf(const Loop& loop) {
  std::vector<double> times;
  Barrier();
  for (int i = -loop.warm; i < loop.iterations; ++i) {
    if (loop.barrier) Barrier();
    const double start = NowUs();
    loop.once();
    if (i >= 0) times.push_back(NowUs() - start);
  }
  return times;
}

void Bench::Measure(const Loop& loop) {
  if (options_.timeline.empty()) {
    Report(loop.op, loop.bytes, TimesOf(loop));
  } else {
    Compare(loop);
  }
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The spread of the rounds' own ratios tells how much a figure is worth.
void Bench::Compare(const Loop& loop) {
  constexpr int kRounds = 20;
  std::vector<double> all[2], ratios;  // off, on
  for (int round = 0; round < kRounds; ++round) {
    double medians[2];
    for (const bool on : {round % 2 == 0, round % 2 != 0}) {
      if (on) Check(rueda_timeline_start(context_, options_.timeline.c_str()));
      const std::vector<double> times = TimesOf(loop);
      if (on) Check(rueda_timeline_stop(context_));
      medians[on] = Median(times);
      all[on].insert(all[on].end(), times.begin(), times.end());
    }
    ratios.push_back(medians[1] / medians[0]);
  }
  if (rank_ != 0) return;
  std::sort(ratios.begin(), ratios.end());
  std::printf(
      "%s %zu bytes, timeline off %.3f us, on %.3f us (medians of %d rounds of %d): on/off %.4f; "
      "of a round %.4f (quartiles %.4f, %.4f)\n",
      loop.op.c_str(), loop.bytes, Median(all[0]), Median(all[1]), kRounds, loop.iterations,
      Median(all[1]) / Median(all[0]), ratios[kRounds / 2], ratios[kRounds / 4],
      ratios[kRounds * 3 / 4]);
  std::fflush(stdout);
}

void Bench::Blocking(size_t bytes) {
  Buffer buffer(context_, bytes, options_.registered);
  rueda_operation operation = RUEDA_OPERATION_INIT;
  const std::string name = options_.op + std::to_string(bytes);
  operation.name = name.c_str();
  if (options_.op == "allreduce") {
    operation.kind = RUEDA_ALLREDUCE;
    operation.reduce_op = RUEDA_SUM;
  } else if (options_.op == "broadcast") {
    operation.kind = RUEDA_BROADCAST;
    operation.root = 0;
  } else if (options_.op == "allgather") {
    operation.kind = RUEDA_ALLGATHER;
  }
  // An allgather's result goes to a buffer of ours.
  Buffer gathered(context_, options_.op == "allgather" ? bytes * np_ : 0, options_.registered);
  if (options_.op != "barrier") operation.input = buffer.tensor();
  if (options_.op == "allgather") operation.output = gathered.tensor();
  if (options_.op == "allreduce") {
    std::fill(buffer.data(), buffer.data() + buffer.elements(), 1.0f);
    Check(rueda_execute(context_, &operation, 1, RUEDA_FOREVER, nullptr));
    for (int64_t i = 0; i < buffer.elements(); ++i) {
      if (buffer.data()[i] != static_cast<float>(np_)) Die("wrong result");
    }
    std::memset(buffer.data(), 0, bytes);
  }
  const int iterations = IterationsFor(options_, bytes);
  Measure({options_.op + (options_.registered ? "_registered" : ""), bytes, iterations,
           iterations / 10 + 1, false,
           [&] { Check(rueda_execute(context_, &operation, 1, RUEDA_FOREVER, nullptr)); }});
}

void Bench::Many(int count, size_t bytes) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<std::string> names;
  std::vector<rueda_handle> handles(count);
  for (int i = 0; i < count; ++i) {
    buffers.push_back(std::make_unique<Buffer>(context_, bytes, options_.registered));
    names.push_back("many" + std::to_string(bytes) + "." + std::to_string(i));
  }
  const int iterations = options_.iterations > 0 ? options_.iterations : 100;
  const auto step = [&] {
    for (int t = 0; t < count; ++t) {
      rueda_operation operation = RUEDA_OPERATION_INIT;
      operation.kind = RUEDA_ALLREDUCE;
      operation.reduce_op = RUEDA_SUM;
      operation.name = names[t].c_str();
      operation.input = buffers[t]->tensor();
      Check(rueda_submit(context_, &operation, 1, nullptr, &handles[t]));
    }
    for (const rueda_handle handle : handles) {
      Check(rueda_wait(context_, handle, RUEDA_FOREVER));
      Check(rueda_release(context_, handle));
    }
  };
  Measure({"many_" + std::to_string(count) + "x" + std::to_string(bytes), bytes * count, iterations,
           5, true, step});
}

// The first one, which loads what the others find loaded, doesn't count.
void Bench::Cycles(int count) {
  std::vector<double> init_us, shutdown_us, both_us;
  for (int i = -1; i < count; ++i) {
    Barrier();
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
  Report("init", 0, std::move(init_us));
  Report("shutdown", 0, std::move(shutdown_us));
  Report("init_shutdown", 0, std::move(both_us));
}

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

void Bench::Idle(double seconds) {
  Barrier();
  SleepSeconds(10);
  const Usage before = ReadUsage();
  SleepSeconds(seconds);
  const Usage after = ReadUsage();
  const double cpu = after.cpu_seconds - before.cpu_seconds;
  const long switches = after.voluntary_switches - before.voluntary_switches;
  std::printf(
      "{\"op\": \"idle\", \"np\": %d, \"rank\": %d, \"seconds\": %.1f, \"cpu_ms\": %.3f, "
      "\"cpu_percent\": %.4f, \"voluntary_switches\": %ld, \"switches_per_s\": %.2f}\n",
      np_, rank_, seconds, cpu * 1e3, cpu / seconds * 100, switches,
      static_cast<double>(switches) / seconds);
  std::fflush(stdout);
  Barrier();
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  rueda_context* const context = Init(nullptr);
  Bench bench(context, options);
  if (options.cycles > 0) {
    bench.Cycles(options.cycles);
  } else if (options.idle_seconds > 0) {
    bench.Idle(options.idle_seconds);
  } else if (!options.many.empty()) {
    for (const auto& [count, bytes] : options.many) bench.Many(count, bytes);
  } else if (options.op == "barrier") {
    bench.Blocking(4);
  } else {
    for (const size_t bytes : options.bytes) bench.Blocking(bytes);
  }
  Check(rueda_shutdown(context));
  rueda_context_destroy(context);
  return 0;
}
