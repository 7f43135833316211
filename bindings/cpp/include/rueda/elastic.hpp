/// \file
/// Elastic jobs in C++: a training loop that goes on when ranks are lost or come.
///
///     #include <rueda/elastic.hpp>
///
///     rueda::init();
///     int step = 0;
///     std::vector<float> weights(1000);
///     rueda::elastic::State state(step, weights);
///     const bool wanted = rueda::elastic::run(state, [&] {
///       for (; step < 1000; ++step) {
///         train(weights);                        // with rueda::allreduce and the like
///         if (step % 10 == 9) state.commit();
///       }
///     });
///     if (wanted) rueda::shutdown();
///
/// Started as `ruedarun -np 4 --min-np 2 ./train`. Otherwise `run` calls the function once.
/// docs/guides/elastic.md tells the rest.
#ifndef RUEDA_ELASTIC_HPP_
#define RUEDA_ELASTIC_HPP_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "rueda/cpp/own_state.hpp"
#include "rueda/rueda.hpp"

namespace rueda::detail {

// Whether `ruedarun` decides who is in the job.
inline bool IsElastic() {
  const char* const value = std::getenv("RUEDA_ELASTIC_FD");
  return value != nullptr && *value != '\0';
}

// What a state keeps: of its last commit, and of the one before while all may go back to it.
template <typename Copy>
class KeptCopies {
 public:
  const Copy& last() const { return last_; }

  // `fill` turns a copy that is not needed any more into one of the state as it is.
  template <typename Fill>
  void Keep(bool with_earlier, Fill&& fill) {
    has_earlier_ = false;
    fill(with_earlier ? &earlier_ : &last_);
    if (!with_earlier) return DropEarlier();
    std::swap(last_, earlier_);
    has_earlier_ = true;
  }

  void DropEarlier() {
    earlier_ = {};
    has_earlier_ = false;
  }

  // To the one before. False: there is none.
  bool GoBack() {
    if (!std::exchange(has_earlier_, false)) return false;
    last_ = std::exchange(earlier_, {});
    return true;
  }

 private:
  Copy last_ = {};
  Copy earlier_ = {};
  bool has_earlier_ = false;
};

}  // namespace rueda::detail

namespace rueda::elastic {

/// \addtogroup cpp_elastic
/// @{

/// Thrown by a commit, on all ranks at the same one, when ranks are to be added or to leave. `run`
/// catches it; nothing is rolled back.
class HostsUpdated : public std::exception {
 public:
  /// `change`: RUEDA_RANKS_ADDED and RUEDA_RANKS_REMOVED.
  explicit HostsUpdated(int change) : change_(change) {}
  /// For people.
  const char* what() const noexcept override { return "ranks are to be added, or to leave"; }
  /// Whether ranks are to be added.
  bool added() const { return (change_ & RUEDA_RANKS_ADDED) != 0; }
  /// Whether ranks are to leave.
  bool removed() const { return (change_ & RUEDA_RANKS_REMOVED) != 0; }

 private:
  int change_;
};

/// What a membership is: see rueda_membership_info.
inline rueda_membership membership_info() {
  rueda_membership info = RUEDA_MEMBERSHIP_INIT;
  detail::Check(rueda_membership_info(detail::Current(), &info));
  return info;
}

/// What survives a lost rank: it is kept in the rank's memory at each commit, and goes to ranks
/// that come. One thread.
class StateBase {
 public:
  StateBase() = default;
  StateBase(const StateBase&) = delete;
  StateBase& operator=(const StateBase&) = delete;
  virtual ~StateBase() = default;

  /// Keeps the state as it is.
  virtual void save() = 0;
  /// Goes back to what was kept last, or to what was there at construction. What it throws ends
  /// this rank, and others go on.
  virtual void restore() = 0;
  /// Goes back to what was kept before that, where a lost host may take the last with it: that is
  /// the last then. False: it is not kept any more.
  virtual bool go_back() { return false; }
  /// Gives every rank the state of `source`. Collective.
  virtual void sync(int source) = 0;
  /// The last that all ranks do together before some leave. Collective.
  virtual void before_change() {}
  /// The ranks have changed; the reset callbacks and sync follow.
  virtual void reset() {}

  /// Keeps the state, then looks whether ranks are to be added or to leave. All ranks call it after
  /// the same step, whose operations they have waited for. Throws HostsUpdated, on all or on none.
  void commit() {
    in_background_ = true;
    save();
    in_background_ = false;
    is_whole_ = true;
    ++commits_;
    check_host_updates();
  }
  /// The second half of commit, without keeping anything.
  void check_host_updates() {
    const int change = CheckMembership();
    if (change == 0) return;
    is_whole_ = false;
    before_change();
    throw HostsUpdated(change);
  }
  /// Called on the ranks that were there before, in each new membership, before the state is
  /// synced: where a learning rate follows the number of ranks. Process sets are made at the top of
  /// `train`, which newcomers call too.
  void register_reset_callback(std::function<void()> callback) {
    callbacks_.push_back(std::move(callback));
  }
  /// How often it has been kept, by whichever ranks had it.
  uint64_t commits() const { return commits_; }

  /// For `run`: gives all ranks the newest state, and keeps it.
  void Follow() {
    const int source = membership_info().source;
    // No fewer than the launcher has heard of: else it would take newcomers for such without it.
    const uint64_t commits = SyncAll(source) ? commits_ + 1 : commits_;
    const std::string newest =
        broadcast_object(detail::ToBytes(commits), source, {.name = "rueda.elastic.commits"});
    in_background_ = false;
    save();
    is_whole_ = true;
    detail::FromBytes(newest, &commits_);  // only now it has what it says
  }
  /// For `run`.
  void OnReset() {
    reset();
    for (const std::function<void()>& callback : callbacks_) callback();
  }

 protected:
  /// For save, which asks first: whether what goes to another host may be on its way when it
  /// returns, see OwnState::Exchange. Not after one that failed: all could go back no further than
  /// to what some partner has not got.
  bool in_background() { return std::exchange(is_whole_, false) && in_background_; }

 private:
  // Whether all have gone back for that.
  bool SyncAll(int source) {
    bool went_back = false;
    while (true) {
      try {
        sync(source);
        return went_back;
      } catch (const detail::PartMissingError& error) {
        went_back = AllGoBack(source, error.was_on_its_way);
        if (went_back) continue;
        if (!AwaitOthers()) throw;
        throw Error(error.status(),
                    std::string(error.what()) +
                        ". A host that has lost all its ranks may have kept it, and they were "
                        "waited for, but no rank came there in time (ruedarun --elastic-timeout), "
                        "or the host was lost");
      }
    }
  }
  static int CheckMembership() {
    int32_t change = 0;
    detail::Check(rueda_check_membership(detail::Current(), &change));
    return change;
  }
  // Whether the source still had what was kept before its last, which others may have. All that
  // had its last one have gone back, too.
  bool AllGoBack(int source, bool was_on_its_way) {
    constexpr uint64_t kNone = UINT64_MAX;
    const bool is_source = rueda::rank() == source;
    uint64_t number = is_source && was_on_its_way && GoBack() ? commits_ : kNone;
    const std::string told =
        broadcast_object(detail::ToBytes(number), source, {.name = "rueda.elastic.goes_back"});
    detail::FromBytes(told, &number);
    if (number == kNone) return false;
    if (commits_ > number) GoBack();
    return true;
  }
  bool GoBack() {
    if (!go_back()) return false;
    --commits_;
    return true;
  }
  // Until ranks come that may have what nobody has here: throws HostsUpdated. Returns when none is
  // to be waited for any more: whether any was.
  bool AwaitOthers() {
    const auto pause = std::chrono::milliseconds(20);
    bool waited = false;
    while (allreduce(membership_info().keeping, {.name = "rueda.elastic.awaited", .op = Max}) > 0) {
      waited = true;
      if (const int change = CheckMembership(); change != 0) {
        restore();
        throw HostsUpdated(change);
      }
      std::this_thread::sleep_for(pause);
    }
    return waited;
  }

  std::vector<std::function<void()>> callbacks_;
  uint64_t commits_ = 0;
  bool in_background_ = false;
  bool is_whole_ = true;  // nothing of the last commit failed: partners have it all, or will
};

/// Of variables: numbers and other trivially copyable values, vectors and strings of these, what
/// has `std::string to_bytes() const` and `void from_bytes(std::string_view)`, and Sharded and Own,
/// which differ by rank. They outlive it. After each sync all but what has to_bytes() is compared:
/// RUEDA_FAILED_PRECONDITION on all ranks if it differs.
class State : public StateBase {
 public:
  /// Keeps them as they are.
  template <typename... Values>
  explicit State(Values&... values) {
    (Add(values), ...);
    CopyValues();
    KeepAll(/*with_earlier=*/false);
  }

  /// Collective, if there is a Sharded or Own.
  void save() override {
    Gather(in_background());
    KeepAll(is_on_its_way());
  }
  bool go_back() override {
    if (!copies_.GoBack()) return false;
    for (size_t i = 0; i < own_.size(); ++i) own_[i]->SetKept(copies_.last().own[i]);
    restore();
    return true;
  }
  /// Throws RUEDA_DATA_LOSS if a copy is not as it was kept. Nothing has changed then.
  void restore() override {
    const std::vector<ValueCopy>& kept = copies_.last().values;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (detail::FingerprintOf(kept[i].bytes) == kept[i].sum) continue;
      detail::ThrowDamaged("variable " + std::to_string(i));
    }
    for (OwnState* own : own_) own->Restore();
    for (size_t i = 0; i < values_.size(); ++i) values_[i].set(kept[i].bytes);
  }
  void sync(int source) override {
    for (size_t i = 0; i < own_.size(); ++i) own_[i]->Sync(source, NameOf("own", i));
    for (size_t i = 0; i < values_.size(); ++i) {
      const bool is_source = rueda::rank() == source;
      values_[i].set(broadcast_object(is_source ? values_[i].get() : "", source,
                                      {.name = NameOf("state", i)}));
    }
    CheckReplicas(source);
  }
  void before_change() override { Exchange(/*in_background=*/false); }

  /// For a state that has this one. The first half of save, and all of it that may fail;
  /// collective.
  void Gather(bool in_background) {
    Exchange(in_background);
    copies_.DropEarlier();  // all have the last: there is room for the next
    CopyValues();
  }
  /// The second half. `with_earlier`: go_back works then.
  void KeepAll(bool with_earlier) {
    for (OwnState* own : own_) {
      own->Keep();
      next_.own.push_back(own->kept());
    }
    copies_.Keep(with_earlier, [this](Copy* copy) { *copy = std::exchange(next_, {}); });
  }
  /// Between the two: see OwnState.
  bool is_on_its_way() const {
    return std::any_of(own_.begin(), own_.end(),
                       [](const OwnState* own) { return own->is_on_its_way(); });
  }

 private:
  struct Value {
    std::function<std::string()> get;
    std::function<void(const std::string&)> set;
    bool compared;  // after a sync
  };
  struct ValueCopy {
    std::string bytes;
    uint64_t sum;
  };
  struct Copy {
    std::vector<ValueCopy> values;
    std::vector<uint64_t> own;  // the versions that they have kept
  };

  void CopyValues() {
    next_ = {};
    for (const Value& value : values_) {
      std::string bytes = value.get();
      const uint64_t sum = detail::FingerprintOf(bytes);
      next_.values.push_back({std::move(bytes), sum});
    }
  }
  void Exchange(bool in_background) {
    for (size_t i = 0; i < own_.size(); ++i) own_[i]->Exchange(NameOf("own", i), in_background);
  }

  // Whether all have what the source has.
  void CheckReplicas(int source) const {
    std::vector<uint64_t> mine;
    for (const Value& value : values_) {
      mine.push_back(value.compared ? detail::FingerprintOf(value.get()) : 0);
    }
    const std::vector<std::string> all =
        allgather_object(detail::ToBytes(mine), {.name = "rueda.elastic.check"});
    std::vector<uint64_t> right, theirs;
    detail::FromBytes(all[static_cast<size_t>(source)], &right);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      detail::FromBytes(all[rank], &theirs);
      const auto differs = std::mismatch(right.begin(), right.end(), theirs.begin(), theirs.end());
      if (differs.first == right.end() && differs.second == theirs.end()) continue;
      throw Error(RUEDA_FAILED_PRECONDITION,
                  "elastic state: variable " + std::to_string(differs.first - right.begin()) +
                      " of rank " + std::to_string(rank) + " is not as that of rank " +
                      std::to_string(source) + ", though they have been synced");
    }
  }

  template <typename T>
  void Add(T& value) {
    if constexpr (std::is_base_of_v<OwnState, T>) {
      own_.push_back(&value);
    } else if constexpr (!detail::Kept<T>) {
      static_assert(detail::Kept<T>,
                    "elastic state is of values that are copied as bytes, of vectors and strings "
                    "of such, or of what has to_bytes() and from_bytes()");
    } else {
      values_.push_back({[&value] { return detail::ToBytes(value); },
                         [&value](const std::string& bytes) { detail::FromBytes(bytes, &value); },
                         !detail::Serialized<T>});
    }
  }
  static std::string NameOf(const std::string& kind, size_t i) {
    return "rueda.elastic." + kind + "." + std::to_string(i);
  }

  std::vector<Value> values_;
  std::vector<OwnState*> own_;
  detail::KeptCopies<Copy> copies_;
  Copy next_;  // between the halves of save
};

/// Calls `train` until it returns: again when ranks were lost, with the state of the last commit,
/// or are added or leave, with the state as it is. Ranks that come get the state of those that were
/// there. True: `train` has returned. False: this process is not wanted any more, as its host is
/// taken away or the job is over: return 0 from main, without rueda::shutdown().
///
/// What all ranks do together belongs in `train`, to the last: if a rank is lost when another's has
/// returned already, operations behind `run` fail.
///
/// Other exceptions pass through: what is wrong with this rank ends it as failed, and the others go
/// on. In a job that is not elastic the error of a lost rank does, too; and where a program waits
/// again and again for an operation that an earlier membership has taken with it.
template <typename Train>
bool run(StateBase& state, Train&& train) {
  // A program may have begun some operations in a membership that it waits for in the next ones.
  constexpr int kOldErrorsMax = 10;  // without a commit between
  int old_errors = 0;
  uint64_t failed_at = 0;  // commits
  // One that comes later has built everything by now, and comes in.
  bool regroups = membership_info().number == 0;
  bool is_first = true;
  while (true) {
    try {
      if (regroups) {
        const rueda_status status = rueda_regroup(detail::Current(), state.commits());
        if (status == RUEDA_CANCELLED) return false;
        detail::Check(status);
        if (!is_first) state.OnReset();
      }
      regroups = true;
      is_first = false;
      state.Follow();
      train();
      return true;
    } catch (const HostsUpdated&) {
      // The state stays as it is.
    } catch (const Error& error) {
      if (error.status() != RUEDA_ABORTED || !error.recoverable() || !detail::IsElastic()) throw;
      if (failed_at != state.commits()) old_errors = 0;
      failed_at = state.commits();
      const bool is_old = error.membership() != 0 && error.membership() != rueda::membership();
      if (is_old && ++old_errors > kOldErrorsMax) throw;
      // If it is old, the others are not to wait for this rank.
      (void)rueda_abort(detail::Current(), error.what());
      state.restore();
    }
  }
}

/// @}

}  // namespace rueda::elastic

#endif  // RUEDA_ELASTIC_HPP_
