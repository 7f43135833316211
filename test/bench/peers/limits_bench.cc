// limits_bench: the least that an allreduce of float32 (sum, in place) can cost between processes
// of this machine: the bytes moved and the ranks waiting for each other, no names, no checks, no
// failure ever noticed. Plain loops, compiled for this processor. One JSON line a floor and size.
//
//     limits_bench RANKS BYTES|COUNTxBYTES...
//
// floor_shared     the tensors lie in shared memory already: each rank sums its share of all
// floor_staged     private tensors, copied in, summed and copied out in pieces that stay in the
//                  cache; of a batch (COUNTxBYTES), as many tensors as fit travel together
// floor_exchange   small private tensors: each rank publishes its own and sums all
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "timing.h"

namespace {

constexpr size_t kHotElements = 4096;  // 16 KiB stay in the first-level cache
constexpr size_t kPieceElements = (256 << 10) / sizeof(float);
constexpr size_t kBatchElements = (1 << 20) / sizeof(float);
constexpr size_t kExchangeElementsMax = (64 << 10) / sizeof(float);

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "limits_bench: %s\n", what);
  _exit(1);
}

// Leaves the other's cache line alone for a moment.
void Pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

// Memory for every process forked from here on, never given back.
template <typename T>
T* Map(size_t count, int sharing) {
  void* const data = mmap(nullptr, std::max<size_t>(count * sizeof(T), 1), PROT_READ | PROT_WRITE,
                          sharing | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (data == MAP_FAILED) Die("out of memory");
  return static_cast<T*>(data);
}

struct alignas(64) Shared {
  std::atomic<uint32_t> turn = 0;  // of one rank: how often it has come to Meet
  // What rank 0 has chosen.
  std::atomic<int> iterations = 0;
  std::atomic<int> warm = 0;
};

// One rank's view of all.
class Team {
 public:
  Team(int size, Shared* shared) : size_(size), shared_(shared) {}

  void Become(int self) {
    self_ = self;
    cpu_set_t usable;
    CPU_ZERO(&usable);
    sched_getaffinity(0, sizeof usable, &usable);
    yields_ = size_ > CPU_COUNT(&usable);
    if (yields_) return;
    int core = -1;
    for (int i = 0; i <= self; ++i) {
      do ++core;
      while (!CPU_ISSET(core, &usable));
    }
    CPU_ZERO(&usable);
    CPU_SET(core, &usable);
    sched_setaffinity(0, sizeof usable, &usable);
  }

  // Returns when every rank has come here as often as this one.
  void Meet() {
    ++turn_;
    shared_[self_].turn.store(turn_, std::memory_order_release);
    for (int rank = 0; rank < size_; ++rank) {
      while (static_cast<int32_t>(shared_[rank].turn.load(std::memory_order_acquire) - turn_) < 0) {
        yields_ ? (void)sched_yield() : Pause();
      }
    }
  }

  // The first of the elements (of COUNT) that a rank sums; whole cache lines.
  size_t ShareOf(int rank, size_t count) const {
    const size_t lines = (count + 15) / 16;
    return std::min(count, lines * static_cast<size_t>(rank) / static_cast<size_t>(size_) * 16);
  }

  int size() const { return size_; }
  int self() const { return self_; }
  std::atomic<int>& iterations() { return shared_[0].iterations; }
  std::atomic<int>& warm() { return shared_[0].warm; }

 private:
  const int size_;
  Shared* const shared_;
  int self_ = 0;
  uint32_t turn_ = 0;
  bool yields_ = false;
};

void AddTo(float* __restrict sum, const float* __restrict more, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += more[i];
}

// tensors[0] = ... = tensors[N - 1] = their sum.
void SumInPlace(const std::vector<float*>& tensors, size_t begin, size_t end) {
  for (size_t i = begin; i < end; i += kHotElements) {
    const size_t count = std::min(kHotElements, end - i);
    for (size_t t = 1; t < tensors.size(); ++t) AddTo(tensors[0] + i, tensors[t] + i, count);
    for (size_t t = 1; t < tensors.size(); ++t) {
      std::memcpy(tensors[t] + i, tensors[0] + i, count * sizeof(float));
    }
  }
}

// A batch of tensors of one size, of one rank, one behind the other.
struct Batch {
  size_t tensors = 1;
  size_t elements = 0;  // of each
  size_t total() const { return tensors * elements; }
};

// How each floor works. Made before the ranks are, with what they share.
class Floor {
 public:
  Floor(Team* team, Batch batch, bool resident, size_t slot_elements)
      : team_(team), batch_(batch), result_(Map<float>(slot_elements, MAP_SHARED)) {
    for (int rank = 0; rank < team->size(); ++rank) {
      if (resident) all_.push_back(Map<float>(batch.total(), MAP_SHARED));
      slots_.push_back(Map<float>(2 * slot_elements, MAP_SHARED));
    }
  }

  void Become(int self) {
    team_->Become(self);
    own_ = all_.empty() ? Map<float>(batch_.total(), MAP_PRIVATE) : all_[static_cast<size_t>(self)];
  }

  float* own() { return own_; }

  // Each tensor of a batch is one rank's to sum; of one alone, each rank has a share.
  void Direct() {
    team_->Meet();
    if (batch_.tensors == 1) {
      SumInPlace(all_, team_->ShareOf(team_->self(), batch_.elements),
                 team_->ShareOf(team_->self() + 1, batch_.elements));
    } else {
      const size_t size = static_cast<size_t>(team_->size());
      for (size_t t = static_cast<size_t>(team_->self()); t < batch_.tensors; t += size) {
        SumInPlace(all_, t * batch_.elements, (t + 1) * batch_.elements);
      }
    }
    team_->Meet();
  }

  // A share is summed by its rank out of its own tensor and the others' slots, into its own slot.
  void Staged() {
    const size_t self = static_cast<size_t>(team_->self());
    for (size_t at = 0; at < batch_.elements; at += kPieceElements) {
      const size_t count = std::min(kPieceElements, batch_.elements - at);
      const size_t begin = team_->ShareOf(team_->self(), count);
      const size_t end = team_->ShareOf(team_->self() + 1, count);
      float* const mine = own() + at;
      Copy(slots_[self], mine, 0, begin);
      Copy(slots_[self], mine, end, count);
      team_->Meet();
      for (size_t rank = 0; rank < slots_.size(); ++rank) {
        if (rank != self) AddTo(mine + begin, slots_[rank] + begin, end - begin);
      }
      Copy(slots_[self], mine, begin, end);
      team_->Meet();
      for (int rank = 0; rank < team_->size(); ++rank) {
        if (rank == team_->self()) continue;
        Copy(mine, slots_[static_cast<size_t>(rank)], team_->ShareOf(rank, count),
             team_->ShareOf(rank + 1, count));
      }
    }
    team_->Meet();
  }

  // As Staged, of many tensors at once: copied in whole, summed as one, copied out.
  void Packed() {
    const size_t at_once = std::max<size_t>(1, kBatchElements / batch_.elements);
    for (size_t t = 0; t < batch_.tensors; t += at_once) {
      const size_t tensors = std::min(at_once, batch_.tensors - t);
      const size_t count = tensors * batch_.elements;
      CopyTensors(slots_[static_cast<size_t>(team_->self())], own() + t * batch_.elements, tensors);
      team_->Meet();
      const size_t begin = team_->ShareOf(team_->self(), count);
      const size_t end = team_->ShareOf(team_->self() + 1, count);
      Copy(result_, slots_[0], begin, end);
      for (size_t rank = 1; rank < slots_.size(); ++rank) {
        AddTo(result_ + begin, slots_[rank] + begin, end - begin);
      }
      team_->Meet();
      CopyTensors(own() + t * batch_.elements, result_, tensors);
    }
  }

  // Two alternating slots per rank: before a rank writes a slot again, all have read it and met.
  void Exchange() {
    parity_ = 1 - parity_;
    const size_t offset = parity_ * kExchangeElementsMax;
    Copy(slots_[static_cast<size_t>(team_->self())] + offset, own(), 0, batch_.elements);
    team_->Meet();
    Copy(own(), slots_[0] + offset, 0, batch_.elements);
    for (size_t rank = 1; rank < slots_.size(); ++rank) {
      AddTo(own(), slots_[rank] + offset, batch_.elements);
    }
  }

 private:
  static void Copy(float* to, const float* from, size_t begin, size_t end) {
    std::memcpy(to + begin, from + begin, (end - begin) * sizeof(float));
  }
  // One by one, as tensors lie apart.
  void CopyTensors(float* to, const float* from, size_t tensors) {
    for (size_t t = 0; t < tensors; ++t) {
      Copy(to, from, t * batch_.elements, (t + 1) * batch_.elements);
    }
  }

  Team* const team_;
  const Batch batch_;
  float* const result_;        // in shared memory
  std::vector<float*> all_;    // by rank; in shared memory, or none
  std::vector<float*> slots_;  // by rank; in shared memory
  float* own_ = nullptr;       // this rank's tensors
  size_t parity_ = 0;
};

void Report(const char* name, const Team& team, const Batch& batch, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  const double p50 = times[times.size() / 2];
  const size_t bytes = batch.total() * sizeof(float);
  std::string op = "allreduce";
  if (batch.tensors > 1) {
    op = "many_" + std::to_string(batch.tensors) + "x" +
         std::to_string(batch.elements * sizeof(float));
  }
  std::printf(
      "{\"peer\": \"%s\", \"op\": \"%s\", \"np\": %d, \"bytes\": %zu, \"p50_us\": %.3f, "
      "\"min_us\": %.3f, \"p99_us\": %.3f, \"algbw_GBps\": %.3f}\n",
      name, op.c_str(), team.size(), bytes, p50, times[0], times[times.size() * 99 / 100],
      static_cast<double>(bytes) / p50 / 1e3);
  std::fflush(stdout);
}

void Measure(const char* name, Team* team, const Batch& batch, Floor* floor,
             void (Floor::*once)()) {
  std::fill_n(floor->own(), batch.total(), 1.0f);
  team->Meet();
  (floor->*once)();
  for (size_t i = 0; i < batch.total(); ++i) {
    if (floor->own()[i] != static_cast<float>(team->size())) Die("wrong result");
  }
  team->Meet();  // nobody changes what another still looks at
  std::fill_n(floor->own(), batch.total(), 0.0f);
  team->Meet();
  const auto run = [&](int iterations) {
    std::vector<double> times;
    for (int i = 0; i < iterations; ++i) {
      if (batch.tensors > 1) team->Meet();
      const double start = now_us();
      (floor->*once)();
      times.push_back(now_us() - start);
    }
    return times;
  };
  // At most a second's worth, after 20 ms or a tenth of it; rank 0 says how many that is.
  std::vector<double> times = run(5);
  std::sort(times.begin(), times.end());
  if (team->self() == 0) {
    const int wanted = iterations_for(static_cast<long>(batch.total() * sizeof(float)));
    const double a_second = 1e6 / (times[2] + 0.01);
    const int iterations = std::max(5, static_cast<int>(std::min<double>(wanted, a_second)));
    team->iterations() = iterations;
    team->warm() = std::max(iterations / 10 + 1, static_cast<int>(a_second / 50));
  }
  team->Meet();
  const int iterations = team->iterations();
  run(team->warm());
  times = run(iterations);
  if (team->self() == 0) Report(name, *team, batch, times);
}

// Each measurement has processes of its own. Returns false when one failed.
bool Run(const char* name, int ranks, const Batch& batch, bool resident, size_t slot_elements,
         void (Floor::*once)()) {
  Team team(ranks, Map<Shared>(static_cast<size_t>(ranks), MAP_SHARED));
  if (const pid_t maps = fork(); maps != 0) {  // in a process that frees the memory by its end
    int status = 0;
    waitpid(maps, &status, 0);
    return status == 0;
  }
  Floor floor(&team, batch, resident, slot_elements);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) Die("fork failed");
    if (child == 0) {
      floor.Become(rank);
      Measure(name, &team, batch, &floor, once);
      _exit(0);
    }
    children.push_back(child);
  }
  for (int ended = 0; ended < ranks; ++ended) {
    int status = 0;
    wait(&status);
    if (status == 0) continue;
    for (const pid_t child : children) kill(child, SIGKILL);  // they would wait for it
    _exit(1);
  }
  _exit(0);
}

bool RunAll(int ranks, const Batch& batch) {
  bool good = Run("floor_shared", ranks, batch, true, 0, &Floor::Direct);
  if (batch.tensors > 1) {
    const size_t slot = std::max(kBatchElements, batch.elements);
    return Run("floor_staged", ranks, batch, false, slot, &Floor::Packed) && good;
  }
  good = Run("floor_staged", ranks, batch, false, kPieceElements, &Floor::Staged) && good;
  if (batch.elements > kExchangeElementsMax) return good;
  return Run("floor_exchange", ranks, batch, false, kExchangeElementsMax, &Floor::Exchange) && good;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: limits_bench RANKS BYTES|COUNTxBYTES...\n");
    return 2;
  }
  bool good = true;
  for (int arg = 2; arg < argc; ++arg) {
    const std::string text = argv[arg];
    const size_t x = text.find('x');
    Batch batch;
    if (x != std::string::npos) batch.tensors = std::strtoul(text.c_str(), nullptr, 10);
    batch.elements =
        std::strtoul(text.c_str() + (x == std::string::npos ? 0 : x + 1), nullptr, 10) /
        sizeof(float);
    good = RunAll(std::atoi(argv[1]), batch) && good;
  }
  return good ? 0 : 1;
}
