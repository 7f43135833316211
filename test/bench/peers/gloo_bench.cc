// Gloo's allreduce of float32, in place, between processes over loopback TCP, as rueda_bench
// measures its own: one JSON line per size and algorithm.
//
//     gloo_bench [--on INTERFACE DIRECTORY FIRST COUNT] RANKS ALGORITHM BYTES...
//
// ALGORITHM: ring, halving_doubling, or one of Gloo's newer interface: new_ring, bcube. --on: only
// COUNT of the ranks, from FIRST on, over that interface; the others are on other hosts, and meet
// in DIRECTORY.
#include <gloo/allreduce.h>
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

class NewAllreduce : public gloo::Algorithm {
 public:
  NewAllreduce(const std::shared_ptr<gloo::Context>& context, std::vector<float>& data,
               gloo::AllreduceOptions::Algorithm algorithm)
      : gloo::Algorithm(context), options_(context) {
    options_.setOutput(data.data(), data.size());
    options_.setAlgorithm(algorithm);
    options_.setReduceFunction([](void* to, const void* a, const void* b, size_t n) {
      const auto *x = static_cast<const float*>(a), *y = static_cast<const float*>(b);
      for (size_t i = 0; i < n; ++i) static_cast<float*>(to)[i] = x[i] + y[i];
    });
  }
  void run() override { gloo::allreduce(options_); }

 private:
  gloo::AllreduceOptions options_;
};

std::unique_ptr<gloo::Algorithm> MakeAlgorithm(const std::string& name,
                                               const std::shared_ptr<gloo::Context>& context,
                                               std::vector<float>& data) {
  const std::vector<float*> pointers = {data.data()};
  const int elements = static_cast<int>(data.size());
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  if (name == "new_ring") return std::make_unique<NewAllreduce>(context, data, Algorithm::RING);
  if (name == "bcube") return std::make_unique<NewAllreduce>(context, data, Algorithm::BCUBE);
  if (name == "ring") {
    return std::make_unique<gloo::AllreduceRingChunked<float>>(context, pointers, elements);
  }
  return std::make_unique<gloo::AllreduceHalvingDoubling<float>>(context, pointers, elements);
}

// Where the ranks that this process starts are.
struct Part {
  std::string network = "lo";
  std::string directory;  // empty: a new one for each size
  int first = 0;
  int count = 0;
};

void Run(int rank, int size, const std::string& network, const std::string& directory,
         const std::string& name, long bytes) {
  gloo::transport::tcp::attr attr;
  attr.iface = network;
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
  Part part;
  if (argc > 5 && std::string(argv[1]) == "--on") {
    part = {argv[2], argv[3], std::atoi(argv[4]), std::atoi(argv[5])};
    argc -= 5;
    argv += 5;
  }
  if (argc < 4) {
    std::fprintf(stderr,
                 "usage: gloo_bench [--on INTERFACE DIRECTORY FIRST COUNT] RANKS "
                 "ring|halving_doubling|new_ring|bcube BYTES...\n");
    return 2;
  }
  const int size = std::atoi(argv[1]);
  const int first = part.first, count = part.directory.empty() ? size : part.count;
  int status = 0;
  for (int arg = 3; arg < argc; ++arg) {
    std::string directory = part.directory + "/" + argv[2] + argv[arg];
    if (part.directory.empty()) {
      char made[] = "/tmp/gloo_bench.XXXXXX";
      if (mkdtemp(made) == nullptr) return 1;
      directory = made;
    } else {
      std::filesystem::create_directories(directory);
    }
    for (int rank = first; rank < first + count; ++rank) {
      if (fork() == 0) {
        Run(rank, size, part.network, directory, argv[2], std::atol(argv[arg]));
        _exit(0);
      }
    }
    for (int rank = 0; rank < count; ++rank) {
      int ended = 0;
      wait(&ended);
      status |= ended;
    }
    if (part.directory.empty()) std::filesystem::remove_all(directory);
  }
  return status == 0 ? 0 : 1;
}
