// The store over links: rank 0 keeps it, leaders pass calls up and answers down, and each rank's
// own lane threads reach it through LinkStore.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/bus/link.h"
#include "core/base/mutex.h"
#include "ops/backend/store.h"

namespace rueda {

// A Store whose calls the engine carries. Thread-safe.
class LinkStore : public Store {
 public:
  // `wake` makes the engine look at Take().
  explicit LinkStore(std::function<void()> wake) : wake_(std::move(wake)) {}

  absl::Status Set(absl::string_view key, absl::string_view value) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::string> Get(absl::string_view key, Nanos timeout,
                                  const std::atomic<bool>& cancelled) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake() override ABSL_LOCKS_EXCLUDED(mutex_);
  void Abort() override ABSL_LOCKS_EXCLUDED(mutex_);

  // The engine's side.
  struct StoreCall {
    bool set = false;
    uint64_t id = 0;  // of a get
    std::string key;
    std::string value;
  };
  bool HasCalls() const { return has_calls_.load(std::memory_order_acquire); }
  std::vector<StoreCall> Take() ABSL_LOCKS_EXCLUDED(mutex_);
  void Answer(uint64_t id, std::string value) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  const std::function<void()> wake_;
  std::atomic<bool> has_calls_{false};
  Mutex mutex_;
  CondVar changed_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<StoreCall> calls_ ABSL_GUARDED_BY(mutex_);
  // By number of a get that waits; empty until it is answered.
  std::map<uint64_t, std::optional<std::string>> answers_ ABSL_GUARDED_BY(mutex_);
};

// Called by the engine only.
class StoreRelay {
 public:
  // `up`: the link towards rank 0; null at rank 0 itself. `local`: this rank's own store.
  StoreRelay(Link* up, LinkStore* local) : up_(up), local_(local) {}

  // Carries what this rank's threads asked. Returns whether there was anything.
  bool Pump();
  // A frame of type kStoreSet, kStoreGet or kStoreValue that came over `from`. An error means that
  // the peer speaks nonsense.
  absl::Status OnFrame(Link* from, const Frame& frame);

 private:
  struct Asker {
    Link* link = nullptr;  // null: this rank
    uint64_t id = 0;       // the asker's own number
  };
  absl::Status Set(std::string key, std::string value);
  void Get(const Asker& asker, const std::string& key);
  void Answer(const Asker& asker, const std::string& value);

  Link* const up_;
  LinkStore* const local_;
  std::map<std::string, std::string> values_;          // at rank 0
  std::map<std::string, std::vector<Asker>> waiting_;  // at rank 0, by key
  std::map<uint64_t, Asker> passed_up_;                // elsewhere, by our number
  uint64_t next_id_ = 1;
};

}  // namespace rueda
