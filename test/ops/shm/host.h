// The ranks of one host for the tests of shared memory: threads of one process, each with its own
// view of the segment, its own arena and its own bells.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ops/shm/shm_backend.h"

namespace rueda {

class Host {
 public:
  // `ranks`: the world ranks, ascending.
  explicit Host(std::vector<Rank> ranks) : ranks_(std::move(ranks)) {
    const int n = static_cast<int>(ranks_.size());
    segment_ = *Segment::Create(n, 4'096);
    std::vector<std::shared_ptr<SharedMemory>> memories;
    for (int i = 0; i < n; ++i) {
      arenas_.push_back(*Arena::Create());
      memories.push_back(arenas_.back()->memory());
      bells_.push_back({*Doorbell::Create(), *Doorbell::Create()});
    }
    for (int i = 0; i < n; ++i) {
      neighbours_.push_back(std::make_unique<Neighbours>(segment_.get(), i, bells_));
      backends_.push_back(std::make_unique<ShmBackend>(segment_.get(), neighbours_.back().get(),
                                                       ranks_, memories, arenas_.back()));
    }
  }
  explicit Host(int n) : Host(FirstRanks(n)) {}

  int size() const { return static_cast<int>(ranks_.size()); }
  Segment& segment() { return *segment_; }
  Arena& arena(int local) { return *arenas_[static_cast<size_t>(local)]; }
  const Neighbours& neighbours(int local) { return *neighbours_[static_cast<size_t>(local)]; }

  // The communicator of `ranks` (world ranks) as host rank `local` has it.
  std::unique_ptr<Communicator> Connect(int local, SetId set, const std::vector<Rank>& ranks) {
    Members members;
    members.set = set;
    members.ranks = ranks;
    members.self = static_cast<int>(
        std::find(ranks.begin(), ranks.end(), ranks_[static_cast<size_t>(local)]) - ranks.begin());
    absl::StatusOr<std::unique_ptr<Communicator>> made =
        backends_[static_cast<size_t>(local)]->Connect(members);
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }

  // Goes on with what was started until it is done, sleeping as the engine does, also on `other`,
  // if that is a descriptor. ABORTED when the membership fails. A rank that nobody wakes is a
  // failure of the test.
  absl::Status Finish(int local, Communicator* communicator, int other = -1) {
    constexpr int kPatienceMs = 60'000;
    RankPage& page = segment_->page(local);
    const Doorbell& bell = bells_[static_cast<size_t>(local)].waiter;
    while (true) {
      if (segment_->failed()) return absl::AbortedError(segment_->failure());
      RUEDA_ASSIGN_OR_RETURN(Progress progress, communicator->Advance());
      if (progress == Progress::kBlocked) {
        page.sleep.store(static_cast<uint32_t>(Sleep::kWaiter), std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        RUEDA_ASSIGN_OR_RETURN(progress, communicator->Advance());
        if (progress == Progress::kBlocked && !segment_->failed()) {
          pollfd waits[] = {{bell.fd(), POLLIN, 0}, {other, POLLIN, 0}};
          EXPECT_GE(poll(waits, 2, kPatienceMs), 1) << "rank " << local << " was not woken";
        }
        page.sleep.store(static_cast<uint32_t>(Sleep::kAwake), std::memory_order_relaxed);
        bell.Clear();
      }
      if (progress == Progress::kDone) return absl::OkStatus();
    }
  }

  // Runs `body(local)` on a thread for each rank.
  void Run(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int local = 0; local < size(); ++local) {
      threads.emplace_back([&body, local] { body(local); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  static std::vector<Rank> FirstRanks(int n) {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < n; ++rank) ranks.push_back(rank);
    return ranks;
  }

 private:
  const std::vector<Rank> ranks_;
  std::unique_ptr<Segment> segment_;
  std::vector<std::shared_ptr<Arena>> arenas_;
  std::vector<Bells> bells_;
  std::vector<std::unique_ptr<Neighbours>> neighbours_;
  std::vector<std::unique_ptr<ShmBackend>> backends_;
};

}  // namespace rueda
