// Gloo's allreduce of float32, in place, between processes over loopback TCP, as rueda_bench
// measures its own: one JSON line a size and algorithm.
//
//     gloo_bench RANKS ring|halving_doubling BYTES...
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_one.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace {

double NowUs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

int IterationsFor(long bytes) {
  return bytes <= 4 << 10    ? 20'000
         : bytes <= 64 << 10 ? 2'000
         : bytes <= 1 << 20  ? 200
         : bytes <= 16 << 20 ? 30
         : bytes <= 64 << 20 ? 8
                             : 5;
}

std::unique_ptr<gloo::Algorithm> MakeAlgorithm(const std::string& name,
                                               const std::shared_ptr<gloo::Context>& context,
                                               std::vector<float>& data) {
  const std::vector<float*> pointers = {data.data()};
  const int elements = static_cast<int>(data.size());
  if (name == "ring") {
    return std::make_unique<gloo::AllreduceRingChunked<float>>(context, pointers, elements);
  }
  return std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context, pointers, elements);
}

void Run(int rank, int size, const std::string& directory, const std::string& name, long bytes) {
  gloo::transport::tcp::attr attr;
  attr.iface = "lo";
  gloo::rendezvous::FileStore store(directory);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  auto device = gloo::transport::tcp::CreateDevice(attr);
  context->connectFullMesh(store, device);

  std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float), 1);
  const auto algorithm = MakeAlgorithm(name, context, data);
  algorithm->run();
  for (float& value : data) {
    if (value != static_cast<float>(size)) {
      std::fprintf(stderr, "gloo_bench: wrong result\n");
      _exit(1);
    }
    value = 0;
  }
  const auto measure = [&](int iterations) {
    std::vector<double> times;
    for (int i = 0; i < iterations; ++i) {
      const double start = NowUs();
      algorithm->run();
      times.push_back(NowUs() - start);
    }
    std::sort(times.begin(), times.end());
    return times;
  };
  // At most a second's worth, the same on all ranks: what they sum is how long it took each.
  data[0] = static_cast<float>(measure(5)[2]);
  algorithm->run();
  const int second = static_cast<int>(1e6f * static_cast<float>(size) / data[0]);
  data[0] = 0;
  const int iterations = std::max(5, std::min(IterationsFor(bytes), second));
  measure(iterations / 10 + 1);
  const std::vector<double> times = measure(iterations);
  gloo::BarrierAllToOne(context).run();
  if (rank != 0) return;
  const double p50 = times[times.size() / 2];
  std::printf(
      "{\"peer\": \"gloo_%s\", \"op\": \"allreduce\", \"np\": %d, \"bytes\": %ld, \"p50_us\": "
      "%.2f, "
      "\"min_us\": %.2f, \"p99_us\": %.2f, \"algbw_GBps\": %.3f}\n",
      name.c_str(), size, bytes, p50, times[0], times[times.size() * 99 / 100],
      static_cast<double>(bytes) / p50 / 1e3);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: gloo_bench RANKS ring|halving_doubling BYTES...\n");
    return 2;
  }
  const int size = std::atoi(argv[1]);
  int status = 0;
  for (int arg = 3; arg < argc; ++arg) {
    char directory[] = "/tmp/gloo_bench.XXXXXX";
    if (mkdtemp(directory) == nullptr) return 1;
    for (int rank = 0; rank < size; ++rank) {
      if (fork() == 0) {
        Run(rank, size, directory, argv[2], std::atol(argv[arg]));
        _exit(0);
      }
    }
    for (int rank = 0; rank < size; ++rank) {
      int ended = 0;
      wait(&ended);
      status |= ended;
    }
    std::filesystem::remove_all(directory);
  }
  return status == 0 ? 0 : 1;
}
