// The ranks of a job that are threads of one process: they meet in this object instead of over
// sockets. Everything else is as between processes, doorbells and shared memory included.
#pragma once

#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "controller/rendezvous/meeting.h"
#include "core/base/mutex.h"

namespace rueda {

// What the ranks of one membership lay on the table for each other.
struct ThreadTable;

// Shared by the n threads; outlives none of them (each holds a shared_ptr). All methods are
// thread-safe.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size);

  int size() const { return size_; }
  // The meeting of rank `rank`'s next membership of a context; the k-th of each rank meet.
  std::unique_ptr<Meeting> Join(const std::shared_ptr<ThreadRanks>& self, Rank rank,
                                const std::string& context);
  // The start of the membership whose table this is, the list's only one, has failed: so do the
  // others', at once or when they come. Takes no memory.
  void GiveUp(std::list<std::shared_ptr<ThreadTable>> table, const absl::Status& why)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The rank, whose start has met nobody, comes to the same membership again.
  void TakeBack(const std::pair<std::string, Rank>& who) ABSL_LOCKS_EXCLUDED(mutex_);
  // The number of the membership that `rank` joins next.
  uint64_t NextMembership(Rank rank, const std::string& context) ABSL_LOCKS_EXCLUDED(mutex_);
  const Secret& secret() const { return secret_; }

 private:
  std::shared_ptr<ThreadTable> TableFor(const std::string& context, uint64_t membership)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const int size_;
  const Secret secret_;
  Mutex mutex_;
  std::map<std::pair<std::string, Rank>, uint64_t> memberships_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, uint64_t>, std::weak_ptr<ThreadTable>> tables_
      ABSL_GUARDED_BY(mutex_);
  // For ranks that come to a start that has failed.
  std::list<std::shared_ptr<ThreadTable>> given_up_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rueda
