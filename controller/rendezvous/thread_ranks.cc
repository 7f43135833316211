#include "controller/rendezvous/thread_ranks.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "controller/membership/rank_set.h"
#include "controller/rendezvous/secret.h"

namespace rueda {

struct ThreadTable {
  explicit ThreadTable(int size) : hellos(size) {}

  Mutex mutex;
  CondVar changed;
  std::vector<std::optional<wire::Hello>> hellos ABSL_GUARDED_BY(mutex);
  struct Host {
    std::shared_ptr<SharedMemory> segment;
    std::map<Rank, NeighbourOffer> offers;
    std::set<Rank> introduced;  // who have taken all offers
    bool broken = false;        // one of them has left: nobody goes on
  };
  std::map<Rank, Host> hosts ABSL_GUARDED_BY(mutex);  // by leader
  std::map<std::string, std::string> store ABSL_GUARDED_BY(mutex);
  absl::Status failure ABSL_GUARDED_BY(mutex);  // of a rank's start
};

// The store of the thread ranks' membership.
class ThreadStore : public Store {
 public:
  explicit ThreadStore(std::shared_ptr<ThreadTable> table) : table_(std::move(table)) {}
  absl::Status Set(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, Nanos timeout,
                                  const std::atomic<bool>& cancelled) override;
  void Wake() override;
  void Abort() override;

 private:
  const std::shared_ptr<ThreadTable> table_;
  bool aborted_ = false;  // guarded by table_->mutex
};

absl::Status FailedToStart(Rank rank, const absl::Status& why) {
  return StatusAt(absl::StrCat("rank ", rank, " failed to start"), why);
}

class ThreadMeeting : public Meeting {
 public:
  ThreadMeeting(std::shared_ptr<ThreadRanks> group, std::pair<std::string, Rank> who,
                std::shared_ptr<ThreadTable> table)
      : group_(std::move(group)),
        who_(std::move(who)),
        table_(std::move(table)),
        to_give_up_{table_},
        out_of_memory_(FailedToStart(who_.second, absl::ResourceExhaustedError("out of memory"))) {}

  absl::StatusOr<std::vector<wire::Hello>> Gather(const wire::Hello& mine, Nanos deadline) override;
  absl::StatusOr<Neighbourhood> Introduce(absl::Span<const Rank> ranks, Rank self,
                                          const NeighbourOffer& mine, size_t log_bytes,
                                          Nanos deadline) override;
  void GiveUp(Rank self, const absl::Status& why) override;
  absl::Status WhatBecameOf(Rank /*rank*/) const override {
    MutexLock lock(table_->mutex);
    return table_->failure;
  }
  std::vector<std::unique_ptr<Link>> TakeLinks() override { return {}; }
  std::shared_ptr<Store> store() override { return std::make_shared<ThreadStore>(table_); }
  Secret secret() const override { return group_->secret(); }

 private:
  const std::shared_ptr<ThreadRanks> group_;
  const std::pair<std::string, Rank> who_;  // by context and rank
  const std::shared_ptr<ThreadTable> table_;
  bool taken_back_ = false;  // this rank's coming
  // Made while there is memory.
  std::list<std::shared_ptr<ThreadTable>> to_give_up_;
  const absl::Status out_of_memory_;
};

ThreadRanks::ThreadRanks(int size) : size_(size), secret_(NewSecret()) {}

uint64_t ThreadRanks::NextMembership(Rank rank, const std::string& context) {
  MutexLock lock(mutex_);
  return memberships_[{context, rank}] + 1;
}

std::shared_ptr<ThreadTable> ThreadRanks::TableFor(const std::string& context,
                                                   uint64_t membership) {
  MutexLock lock(mutex_);
  std::weak_ptr<ThreadTable>& slot = tables_[{context, membership}];
  std::shared_ptr<ThreadTable> table = slot.lock();
  if (table == nullptr) {
    table = std::make_shared<ThreadTable>(size_);
    slot = table;
    // Tables of memberships that are over have no owner any more.
    std::erase_if(tables_, [](const auto& entry) { return entry.second.expired(); });
  }
  return table;
}

// A rank has joined when nothing can fail any more: else it comes to the same membership again.
std::unique_ptr<Meeting> ThreadRanks::Join(const std::shared_ptr<ThreadRanks>& self, Rank rank,
                                           const std::string& context) {
  const std::pair<std::string, Rank> who(context, rank);
  const uint64_t membership = NextMembership(rank, context);
  auto meeting = std::make_unique<ThreadMeeting>(self, who, TableFor(context, membership));
  MutexLock lock(mutex_);
  memberships_[who] = membership;
  return meeting;
}

void ThreadRanks::GiveUp(std::list<std::shared_ptr<ThreadTable>> table, const absl::Status& why) {
  {
    ThreadTable& failed = *table.front();
    MutexLock lock(failed.mutex);
    if (!failed.failure.ok()) return;  // it gives up because of that
    failed.failure = DeepCopy(why);
    failed.changed.NotifyAll();
  }
  MutexLock lock(mutex_);
  given_up_.splice(given_up_.end(), table);
}

void ThreadRanks::TakeBack(const std::pair<std::string, Rank>& who) {
  MutexLock lock(mutex_);
  --memberships_[who];
}

void ThreadMeeting::GiveUp(Rank self, const absl::Status& why) {
  if (taken_back_) return;
  absl::Status told = out_of_memory_;
  try {
    told = FailedToStart(self, why);
  } catch (const std::bad_alloc&) {  // then that is what is wrong
  }
  group_->GiveUp(std::move(to_give_up_), told);
}

absl::StatusOr<std::vector<wire::Hello>> ThreadMeeting::Gather(const wire::Hello& mine,
                                                               Nanos deadline) {
  ThreadTable& table = *table_;
  std::vector<wire::Hello> hellos;
  {
    MutexLock lock(table.mutex);
    if (table.hellos[mine.rank()].has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("two threads say that they are rank ", mine.rank(), " of this group"));
    }
    table.hellos[mine.rank()] = mine;
    table.changed.NotifyAll();
    while (true) {
      if (!table.failure.ok()) return DeepCopy(table.failure);
      std::vector<Rank> missing;
      for (size_t rank = 0; rank < table.hellos.size(); ++rank) {
        if (!table.hellos[rank].has_value()) missing.push_back(static_cast<Rank>(rank));
      }
      if (missing.empty()) break;
      const Nanos left = deadline - MonotonicNow();
      if (left <= 0) {
        // The others may still come, and this rank again.
        table.hellos[mine.rank()].reset();
        taken_back_ = true;
        group_->TakeBack(who_);
        return absl::DeadlineExceededError(
            absl::StrCat(RanksText(missing), " did not come to the start of the job in time"));
      }
      table.changed.WaitFor(table.mutex, std::chrono::nanoseconds(left));
    }
    for (const auto& hello : table.hellos) hellos.push_back(*hello);
  }
  RUEDA_RETURN_IF_ERROR(CheckHellos(hellos));
  return hellos;
}

absl::StatusOr<Neighbourhood> ThreadMeeting::Introduce(absl::Span<const Rank> ranks, Rank self,
                                                       const NeighbourOffer& mine, size_t log_bytes,
                                                       Nanos deadline) {
  ThreadTable& table = *table_;
  const int count = static_cast<int>(ranks.size());
  Neighbourhood neighbourhood;
  MutexLock lock(table.mutex);
  ThreadTable::Host& host = table.hosts[ranks.front()];
  if (host.segment == nullptr) {
    RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Segment> segment, Segment::Create(count, log_bytes));
    host.segment = segment->memory();
  }
  // Until each rank is in `come`.
  const auto await = [&](const auto& come) -> absl::Status {
    table.changed.NotifyAll();
    while (host.broken || come.size() < ranks.size()) {
      const Nanos left = deadline - MonotonicNow();
      host.broken = host.broken || !table.failure.ok() || left <= 0;
      if (!table.failure.ok()) return DeepCopy(table.failure);
      if (left <= 0) {
        std::vector<Rank> gone;
        std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(gone),
                     [&](Rank rank) { return come.count(rank) == 0; });
        return absl::DeadlineExceededError(absl::StrCat(
            gone.empty() ? "another rank" : RanksText(gone), " left the start of the job"));
      }
      table.changed.WaitFor(table.mutex, std::chrono::nanoseconds(left));
    }
    return absl::OkStatus();
  };
  host.offers[self] = mine;
  RUEDA_RETURN_IF_ERROR(await(host.offers));
  RUEDA_ASSIGN_OR_RETURN(neighbourhood.segment, Segment::Map(host.segment, count, log_bytes));
  for (const Rank rank : ranks) {
    const NeighbourOffer& offer = host.offers[rank];
    neighbourhood.arenas.push_back(offer.arena);
    neighbourhood.bells.push_back(*offer.bells);
  }
  // Another may not have got the segment.
  host.introduced.insert(self);
  RUEDA_RETURN_IF_ERROR(await(host.introduced));
  return neighbourhood;
}

absl::Status ThreadStore::Set(absl::string_view key, absl::string_view value) {
  MutexLock lock(table_->mutex);
  table_->store[std::string(key)] = std::string(value);
  table_->changed.NotifyAll();
  return absl::OkStatus();
}

absl::StatusOr<std::string> ThreadStore::Get(absl::string_view key, Nanos timeout,
                                             const std::atomic<bool>& cancelled) {
  const Nanos deadline = DeadlineAfter(MonotonicNow(), timeout);
  MutexLock lock(table_->mutex);
  while (true) {
    if (aborted_) return absl::AbortedError("the job has failed");
    if (cancelled.load()) return absl::AbortedError("the lane has ended");
    const auto it = table_->store.find(std::string(key));
    if (it != table_->store.end()) return it->second;
    const Nanos left = deadline - MonotonicNow();
    if (left <= 0) {
      return absl::DeadlineExceededError(absl::StrCat("store key ", key, " was not set in time"));
    }
    table_->changed.WaitFor(table_->mutex, std::chrono::nanoseconds(left));
  }
}

void ThreadStore::Wake() {
  MutexLock lock(table_->mutex);
  table_->changed.NotifyAll();
}

void ThreadStore::Abort() {
  MutexLock lock(table_->mutex);
  aborted_ = true;
  table_->changed.NotifyAll();
}

}  // namespace rueda
