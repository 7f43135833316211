// Gloo's allreduce of float32, in place, between processes over loopback TCP, as rueda_bench
// measures its own: one JSON line per size and algorithm.
//
//     gloo_bench [--on INTERFACE DIRECTORY FIRST COUNT] RANKS ALGORITHM BYTES...
//
// ALGORITHM: ring, halving_doubling, or one of Gloo's newer interface: new_ring, bcube; broadcast,
// allgather, alltoall, reducescatter and barrier are other operations; a broadcast begins behind a
// barrier, and is over when the last rank has it. --on: only COUNT of the
// ranks, from FIRST on, over that interface; the others are on other hosts, and meet in DIRECTORY.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/barrier_all_to_one.h>
#include <gloo/broadcast.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "timing.h"

namespace {

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

// Another operation, blocking, from `data` to memory of its own where it is not in place.
class Other : public gloo::Algorithm {
 public:
  Other(const std::shared_ptr<gloo::Context>& context, std::vector<float>& data,
        const std::string& name)
      : gloo::Algorithm(context), context_(context), data_(data), name_(name) {
    if (name == "allgather") result_.resize(data.size() * static_cast<size_t>(context->size));
    if (name == "alltoall") result_.resize(data.size());
    if (name != "reducescatter") return;
    scatter_ = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
        context, std::vector<float*>{data.data()}, static_cast<int>(data.size()),
        std::vector<int>(static_cast<size_t>(context->size),
                         static_cast<int>(data.size()) / context->size));
  }
  void run() override {
    if (name_ == "broadcast") {
      gloo::BroadcastOptions options(context_);
      options.setOutput(data_.data(), data_.size());
      options.setRoot(0);
      gloo::broadcast(options);
    } else if (name_ == "allgather") {
      gloo::AllgatherOptions options(context_);
      options.setInput(data_.data(), data_.size());
      options.setOutput(result_.data(), result_.size());
      gloo::allgather(options);
    } else if (name_ == "alltoall") {
      gloo::AlltoallOptions options(context_);
      options.setInput(data_.data(), data_.size());
      options.setOutput(result_.data(), result_.size());
      gloo::alltoall(options);
    } else if (scatter_ != nullptr) {
      scatter_->run();
    } else {
      gloo::BarrierOptions options(context_);
      gloo::barrier(options);
    }
  }

 private:
  const std::shared_ptr<gloo::Context> context_;
  std::vector<float>& data_;
  const std::string name_;
  std::vector<float> result_;
  std::unique_ptr<gloo::Algorithm> scatter_;
};

bool IsOther(const std::string& name) {
  return name == "broadcast" || name == "allgather" || name == "alltoall" ||
         name == "reducescatter" || name == "barrier";
}

std::unique_ptr<gloo::Algorithm> MakeAlgorithm(const std::string& name,
                                               const std::shared_ptr<gloo::Context>& context,
                                               std::vector<float>& data) {
  const std::vector<float*> pointers = {data.data()};
  const int elements = static_cast<int>(data.size());
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  if (name == "new_ring") return std::make_unique<NewAllreduce>(context, data, Algorithm::RING);
  if (IsOther(name)) return std::make_unique<Other>(context, data, name);
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

  if (name == "alltoall" || name == "reducescatter") {  // whole shares, as rueda_bench
    bytes = (bytes + 4 * size - 1) / (4 * size) * 4 * size;
  }
  std::vector<float> data(static_cast<size_t>(bytes) / sizeof(float), 1);
  const auto algorithm = MakeAlgorithm(name, context, data);
  algorithm->run();
  for (float& value : data) {
    if (!IsOther(name) && value != static_cast<float>(size)) {
      std::fprintf(stderr, "gloo_bench: wrong result\n");
      _exit(1);
    }
    value = 0;
  }
  const auto measure = [&](int iterations) {
    std::vector<double> times;
    for (int i = 0; i < iterations; ++i) {
      if (name == "broadcast") gloo::BarrierAllToOne(context).run();
      const double start = now_us();
      algorithm->run();
      times.push_back(now_us() - start);
    }
    std::sort(times.begin(), times.end());
    return times;
  };
  // At most a second's worth, the same on all ranks.
  std::vector<float> first = {static_cast<float>(measure(5)[2])};
  NewAllreduce(context, first, gloo::AllreduceOptions::Algorithm::RING).run();
  const int second = static_cast<int>(1e6f * static_cast<float>(size) / first[0]);
  const int iterations = std::max(5, std::min(iterations_for(bytes), second));
  measure(iterations / 10 + 1);
  const std::vector<double> times = measure(iterations);
  gloo::BarrierAllToOne(context).run();
  double p50 = times[times.size() / 2];
  if (name == "broadcast") {
    gloo::AllreduceOptions options(context);
    options.setOutput(&p50, 1);
    options.setReduceFunction([](void* to, const void* a, const void* b, size_t) {
      *static_cast<double*>(to) =
          std::max(*static_cast<const double*>(a), *static_cast<const double*>(b));
    });
    gloo::allreduce(options);
  }
  if (rank != 0) return;
  std::printf(
      "{\"peer\": \"gloo_%s\", \"op\": \"%s\", \"np\": %d, \"bytes\": %ld, \"p50_us\": "
      "%.2f, "
      "\"min_us\": %.2f, \"p99_us\": %.2f, \"algbw_GBps\": %.3f}\n",
      name.c_str(), IsOther(name) ? name.c_str() : "allreduce", size, bytes, p50, times[0],
      times[times.size() * 99 / 100], static_cast<double>(bytes) / p50 / 1e3);
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
