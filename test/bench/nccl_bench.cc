// rueda_nccl_bench: what the library adds to CUDA and NCCL, each time as a ratio to doing it by
// hand, in one run: packing against a plain copy, a negotiated allreduce against ncclAllReduce of
// the same memory, and the gradients of ResNet-50 against one NCCL call each. Run it under
// ruedarun.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/nccl/cuda_library.h"
#include "test/bench/device.h"
#include "test/bench/support.h"

namespace rueda::bench {
namespace {

constexpr int kFloat32 = 6, kSum = 0, kNone = 10;  // the library's numbers
constexpr int kIterations = 50, kRounds = 5;

// The elements of ResNet-50's parameters (arXiv 1512.03385), in the order of its layers.
std::vector<int64_t> ResNet50() {
  std::vector<int64_t> sizes;
  int64_t channels = 64;
  const auto convolution = [&](int64_t from, int64_t to, int64_t kernel) {
    sizes.insert(sizes.end(), {from * to * kernel * kernel, to, to});  // and its normalisation
  };
  convolution(3, 64, 7);
  const int blocks[] = {3, 4, 6, 3};
  for (int layer = 0; layer < 4; ++layer) {
    const int64_t width = 64 << layer;
    for (int block = 0; block < blocks[layer]; ++block) {
      convolution(channels, width, 1);
      convolution(width, width, 3);
      convolution(width, 4 * width, 1);
      if (block == 0) convolution(channels, 4 * width, 1);
      channels = 4 * width;
    }
  }
  sizes.insert(sizes.end(), {channels * 1000, 1000});
  return sizes;
}

void CheckCuda(const absl::Status& status) {
  if (!status.ok()) Die(std::string(status.message()));
}

class NcclBench {
 public:
  NcclBench(rueda_context* context, int iterations)
      : context_(context),
        iterations_(iterations),
        device_(context),
        stream_(device_.NewStream()),
        sizes_(ResNet50()) {
    for (const int64_t size : sizes_) total_ += size;
    const std::vector<float> zeros(static_cast<size_t>(total_));
    bucket_ = New(zeros);
    packed_ = New(zeros);
    for (const int64_t size : sizes_) {
      gradients_.push_back(New(std::vector<float>(static_cast<size_t>(size))));
    }
    Connect();
  }
  ~NcclBench() {
    device_.cuda().destroy(nccl_);
    for (void* gradient : gradients_) device_.Release(gradient);
    device_.Release(packed_);
    device_.Release(bucket_);
    device_.CloseStream(stream_);
  }

  void Run(bool json) {
    if (rueda_rank(context_) == 0 && !json) {
      std::printf(
          "# %s, %d ranks, %zu tensors, %lld elements; medians of %d rounds\n%-44s %12s %12s %8s\n",
          device_.name().c_str(), rueda_size(context_), sizes_.size(),
          static_cast<long long>(total_), kRounds, "what", "us", "by hand us", "ratio");
    }
    const double copy = Time([&] { PlainCopy(); });
    Report("pack and unpack, per copy", Time([&] { PackAndUnpack(); }) / 2, copy, json);
    const double by_hand = Time([&] { AllreduceByHand(bucket_, total_); });
    Report("negotiated allreduce of one bucket", Time([&] { Negotiated(); }), by_hand, json);
    Report("161 tensors in a group, against 161 calls", Time([&] { Group(); }),
           Time([&] { CallsByHand(); }), json);
    Report("host: submit", submit_us_, 0, json);
    Report("host: submit and wait_on_stream", ordered_us_, 0, json);
  }

 private:
  void* New(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    void* const memory = device_.Allocate(bytes);
    device_.Upload(memory, values.data(), bytes);
    return memory;
  }

  // A communicator of the benchmark's own.
  void Connect() {
    rueda_cuda_id id = {};
    if (rueda_rank(context_) == 0) CheckCuda(CallCuda(device_.cuda().make_id, &id));
    rueda_result result = RUEDA_RESULT_INIT;
    Check(rueda_broadcast_bytes(context_, RUEDA_WORLD, "id", 0, &id, sizeof id, &result));
    std::memcpy(&id, result.tensor.data, sizeof id);
    rueda_result_free(&result);
    CheckCuda(CallCuda(device_.cuda().connect, static_cast<const rueda_cuda_id*>(&id),
                       rueda_size(context_), rueda_rank(context_), device_.index(), &nccl_));
    CheckCuda(CallCuda(device_.cuda().await, nccl_, int64_t{60'000'000'000}));
  }

  // Microseconds of one call of fn(), which enqueues, with the device busy throughout.
  double Time(const std::function<void()>& fn) {
    for (int i = 0; i < iterations_ / 10 + 1; ++i) fn();
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      device_.Drain(stream_);
      rueda_operation barrier = RUEDA_OPERATION_INIT;
      Check(rueda_execute(context_, &barrier, 1, RUEDA_FOREVER, nullptr));
      const double start = NowUs();
      for (int i = 0; i < iterations_; ++i) fn();
      device_.Drain(stream_);
      times.push_back((NowUs() - start) / iterations_);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void Report(const char* what, double us, double by_hand_us, bool json) {
    if (rueda_rank(context_) != 0) return;
    if (json) {
      std::printf("{\"what\": \"%s\", \"device\": \"%s\", \"np\": %d, \"us\": %.2f", what,
                  device_.name().c_str(), rueda_size(context_), us);
      if (by_hand_us > 0)
        std::printf(", \"by_hand_us\": %.2f, \"ratio\": %.3f", by_hand_us, us / by_hand_us);
      std::printf("}\n");
    } else if (by_hand_us > 0) {
      std::printf("%-44s %12.2f %12.2f %8.3f\n", what, us, by_hand_us, us / by_hand_us);
    } else {
      std::printf("%-44s %12.2f\n", what, us);
    }
    std::fflush(stdout);
  }

  void Copy(const std::vector<rueda_cuda_segment>& segments) {
    const rueda_cuda_copy copy = {segments.data(), segments.size(), kFloat32, kNone, 1};
    CheckCuda(CallCuda(device_.cuda().copy, device_.index(), stream_, &copy));
  }
  void PlainCopy() { Copy({{bucket_, packed_, total_}}); }
  void PackAndUnpack() {
    std::vector<rueda_cuda_segment> in, out;
    auto* at = static_cast<float*>(packed_);
    for (size_t i = 0; i < sizes_.size(); ++i) {
      in.push_back({gradients_[i], at, sizes_[i]});
      out.push_back({at, gradients_[i], sizes_[i]});
      at += sizes_[i];
    }
    Copy(in);
    Copy(out);
  }

  void AllreduceByHand(void* memory, int64_t elements) {
    CheckCuda(CallCuda(device_.cuda().allreduce, nccl_, stream_, static_cast<const void*>(memory),
                       memory, elements, kFloat32, kSum, 1.0));
  }
  void CallsByHand() {
    CheckCuda(CallCuda(device_.cuda().begin, nccl_));
    for (size_t i = 0; i < sizes_.size(); ++i) AllreduceByHand(gradients_[i], sizes_[i]);
    CheckCuda(CallCuda(device_.cuda().end, nccl_));
  }

  // By the library, in the order of the stream.
  void Execute(const std::vector<rueda_operation>& operations) {
    const double start = NowUs();
    rueda_handle handle = 0;
    Check(rueda_submit(context_, operations.data(), operations.size(), nullptr, &handle));
    const double submitted = NowUs();
    Check(rueda_wait_on_stream(context_, handle, stream_));
    submit_us_ = submitted - start;
    ordered_us_ = NowUs() - start;
    Check(rueda_release(context_, handle));
  }
  rueda_operation Operation(const char* name, const rueda_tensor* tensor, const rueda_exec* exec) {
    rueda_operation operation = RUEDA_OPERATION_INIT;
    operation.kind = RUEDA_ALLREDUCE;
    operation.reduce_op = RUEDA_SUM;
    operation.name = name;
    operation.input = tensor;
    operation.exec = exec;
    return operation;
  }
  rueda_exec Exec() const {
    rueda_exec exec = RUEDA_EXEC_INIT;
    exec.device = device_.rueda();
    exec.stream = stream_;
    return exec;
  }
  void Negotiated() {
    const rueda_exec exec = Exec();
    const rueda_tensor tensor = {bucket_, device_.rueda(), 1, RUEDA_FLOAT32, &total_, nullptr, 0};
    Execute({Operation("bucket", &tensor, &exec)});
  }
  void Group() {
    const rueda_exec exec = Exec();
    std::vector<rueda_tensor> tensors;
    std::vector<std::string> names;
    std::vector<rueda_operation> operations;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      tensors.push_back({gradients_[i], device_.rueda(), 1, RUEDA_FLOAT32, &sizes_[i], nullptr, 0});
      names.push_back("gradient." + std::to_string(i));
    }
    for (size_t i = 0; i < sizes_.size(); ++i) {
      operations.push_back(Operation(names[i].c_str(), &tensors[i], &exec));
    }
    Execute(operations);
  }

  rueda_context* const context_;
  const int iterations_;
  const Device device_;
  void* const stream_;
  std::vector<int64_t> sizes_;
  int64_t total_ = 0;
  void* bucket_ = nullptr;
  void* packed_ = nullptr;
  std::vector<void*> gradients_;
  rueda_cuda_communicator* nccl_ = nullptr;
  double submit_us_ = 0, ordered_us_ = 0;  // of the latest call
};

}  // namespace
}  // namespace rueda::bench

constexpr char kUsage[] = "usage: ruedarun -np N rueda_nccl_bench [--json] [--iterations N]\n";

int main(int argc, char** argv) {
  using namespace rueda::bench;
  bool json = false;
  int iterations = kIterations;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--iterations") == 0 && i + 1 < argc) {
      char* end = nullptr;
      iterations = static_cast<int>(std::strtol(argv[++i], &end, 10));
      if (*end != 0 || iterations < 1) {
        Misused(std::string("--iterations expects a number from 1 on, not ") + argv[i]);
      }
    } else if (std::strcmp(argv[i], "--help") == 0) {
      std::fputs(kUsage, stdout);
      return 0;
    } else {
      std::fputs(kUsage, stderr);
      return 2;
    }
  }
  rueda_context* const context = Init(nullptr);
  {
    NcclBench bench(context, iterations);
    bench.Run(json);
  }
  Check(rueda_shutdown(context));
  rueda_context_destroy(context);
  return 0;
}
