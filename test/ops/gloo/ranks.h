// Ranks for the tests of Gloo: threads of one process, each with a backend of its own, that meet in
// a store in memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "gtest/gtest.h"
#include "ops/gloo/gloo_backend.h"
#include "test/ops/backend/bucket_operations.h"
#include "test/ops/backend/memory_store.h"

namespace rueda {

// How long anything may take; generous, as machines are busy.
inline constexpr Nanos kPatience = 60 * kSecond;

inline GlooOptions OptionsFor(std::shared_ptr<Store> store) {
  GlooOptions options;
  options.job = "test";
  options.store = std::move(store);
  options.module_directory = RUEDA_TEST_MODULE_DIRECTORY;
  return options;
}

// A rank's communicator and the bell that its lane thread rings.
class Member {
 public:
  Member(GlooOptions options, SetId set, std::vector<Rank> ranks, Rank rank) {
    options.wake = [this] {
      MutexLock lock(mutex_);
      rung_ = true;
      changed_.NotifyAll();
    };
    backend_ = std::make_unique<GlooBackend>(std::move(options));
    Members members;
    members.set = set;
    members.self = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
    members_ = static_cast<int64_t>(ranks.size());
    members.ranks = std::move(ranks);
    absl::StatusOr<std::unique_ptr<Communicator>> made = backend_->Connect(members);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) communicator_ = *std::move(made);
  }
  Communicator* communicator() { return communicator_.get(); }
  void Close() { communicator_.reset(); }

  // Goes on with what was started until it is done, sleeping as the engine does.
  absl::Status Finish() {
    const Nanos deadline = MonotonicNow() + kPatience;
    while (true) {
      RUEDA_ASSIGN_OR_RETURN(const Progress progress, communicator_->Advance());
      if (progress == Progress::kDone) return absl::OkStatus();
      MutexLock lock(mutex_);
      while (!rung_) {
        const Nanos left = deadline - MonotonicNow();
        if (left <= 0) {
          ADD_FAILURE() << "an operation hangs";
          return absl::InternalError("it hangs");
        }
        changed_.WaitFor(mutex_, std::chrono::nanoseconds(left));
      }
      rung_ = false;
    }
  }
  // An average divides by the number of members.
  absl::Status Execute(BucketOperation operation) {
    if (IsAverage(operation.reduce_op)) operation.scaling.divisor = members_;
    communicator_->Start(operation);
    return Finish();
  }

 private:
  int64_t members_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool rung_ = false;
  std::unique_ptr<GlooBackend> backend_;
  std::unique_ptr<Communicator> communicator_;
};

// Runs body(rank) on `size` threads.
inline void RunThreads(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

inline std::vector<Rank> FirstRanks(int size) {
  std::vector<Rank> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

// Runs body(member, rank) on `size` threads with a communicator of all of them.
inline void RunMembers(int size, const std::function<void(Member&, int)>& body) {
  const auto store = std::make_shared<MemoryStore>();
  RunThreads(size, [&](int rank) {
    Member member(OptionsFor(store), kWorldSet, FirstRanks(size), rank);
    body(member, rank);
  });
}

inline BucketOperation BroadcastOf(const Piece& piece, DType dtype, int root) {
  BucketOperation operation;
  operation.kind = OpKind::kBroadcast;
  operation.dtype = dtype;
  operation.root = root;
  operation.pieces = {&piece, 1};
  operation.elements = piece.elements;
  return operation;
}

inline BucketOperation AllgatherOf(const Piece& piece, DType dtype,
                                   absl::Span<const int64_t> counts) {
  BucketOperation operation;
  operation.kind = OpKind::kAllgather;
  operation.dtype = dtype;
  operation.pieces = {&piece, 1};
  operation.counts = counts;
  for (const int64_t count : counts) operation.elements += count;
  return operation;
}

}  // namespace rueda
