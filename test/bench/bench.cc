#include "test/bench/bench.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "test/bench/support.h"
#include "test/bench/tensor.h"

namespace rueda::bench {
namespace {

// Of a loop. A network may be a thousand times slower than shared memory.
constexpr double kMicrosecondsMax = 2e6;

}  // namespace

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Bench::Bench(rueda_context* context, const Options& options)
    : context_(context), options_(options), size_(rueda_size(context)), rank_(rueda_rank(context)) {
  if (!options.cuda) return;
  device_ = std::make_unique<Device>(context);
  exec_.device = device_->rueda();
  exec_.stream = device_->NewStream();
}

Bench::~Bench() {
  if (device_ != nullptr) device_->CloseStream(exec_.stream);
}

std::unique_ptr<Tensor> Bench::NewTensor(size_t bytes, const std::string& dtype) const {
  if (device_ != nullptr) return std::make_unique<Tensor>(*device_, bytes, dtype);
  return std::make_unique<Tensor>(context_, bytes, options_.registered, dtype);
}

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
        op.c_str(), size_, bytes, p50, times_us[0], p99, bandwidth);
  } else {
    if (!header_printed_) {
      if (device_ != nullptr) std::printf("# %s\n", device_->name().c_str());
      std::printf("# %d ranks, %ld cores\n%-24s %12s %12s %12s %12s %10s\n", size_,
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

Loop Bench::InTime(Loop loop) {
  if (options_.iterations > 0) return loop;
  Loop few = loop;
  few.iterations = 5;
  few.warm = 1;
  Tensor slowest(context_, sizeof(float), false);
  slowest.data()[0] = static_cast<float>(Median(TimesOf(few)));
  rueda_operation operation = RUEDA_OPERATION_INIT;
  operation.kind = RUEDA_ALLREDUCE;
  operation.reduce_op = RUEDA_MAX;
  operation.input = slowest.tensor();
  Check(rueda_execute(context_, &operation, 1, RUEDA_FOREVER, nullptr));
  const double in_time = kMicrosecondsMax / std::max(slowest.data()[0], 0.1f);
  loop.iterations =
      std::max(few.iterations, static_cast<int>(std::min<double>(loop.iterations, in_time)));
  loop.warm = std::min(loop.warm, loop.iterations / 10 + 1);
  return loop;
}

void Bench::Measure(const Loop& loop) {
  const Loop in_time = InTime(loop);
  if (options_.timeline.empty()) {
    Report(in_time.op, in_time.bytes, TimesOf(in_time));
  } else {
    Compare(in_time);
  }
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

}  // namespace rueda::bench
