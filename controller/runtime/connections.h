// This rank's connections: to the leader or the neighbours of its host, and between leaders to
// other hosts. Carries the bus's messages and the store's, hears failures, and keeps watch over who
// is at the other ends.
//
// Owner: the engine; the holder of the baton. Nothing blocks.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/bus/hosts_bus.h"
#include "controller/bus/store_relay.h"
#include "controller/failure/failure.h"
#include "controller/failure/watch.h"
#include "controller/rendezvous/bootstrap.h"
#include "controller/runtime/wait_point.h"

namespace rueda {

class Connections : public Courier {
 public:
  // Who is told what comes, until it does not go on.
  class Listener {
   public:
    virtual bool goes_on() const = 0;
    virtual bool waiting() const = 0;  // see Watch
    // The peer says that the job has failed, or that it could not start.
    virtual void OnFailureTold(Rank peer, Failure failure) = 0;
    virtual void OnLinkLost(Rank peer, const absl::Status& why) = 0;
    // The peer sent what makes no sense.
    virtual void OnNonsense(Rank peer, const absl::Status& what) = 0;
    // The watch has looked: whom it takes for lost, if anybody. A rank that is silent or stopped
    // closes nothing. Also when the launcher has rung: it knows of a rank that has ended.
    virtual void OnWatched(std::optional<Watch::Lost> lost) = 0;

   protected:
    ~Listener() = default;
  };

  // What is passed outlives this. `watch_limit` 0: silence is never too long.
  // `turns_between_looks`: sockets are looked at in every so many turns though nothing says that
  // they are ready.
  Connections(std::vector<RoleLink>* links, WaitPoint* wait_point, Nanos watch_limit,
              int turns_between_looks, Listener* listener);

  // Makes the wait point wake for all of them, and for the launcher's bell, if there is one.
  absl::Status Open(int launchers_bell);
  // Whose messages are carried from now on: each may be null.
  void CarryFor(HostsBus* bus, StoreRelay* relay) {
    bus_ = bus;
    relay_ = relay;
  }

  // Sockets may be ready: the next turn looks.
  void MayBeReady() { look_ = true; }
  // In each turn: looks at the sockets if it is time to. `now`: the turn's. Returns whether
  // anything moved.
  bool Pump(Nanos now);
  // When to take a turn though nothing rings.
  Nanos deadline() const {
    const bool waiting = listener_.waiting();
    return std::min(watch_.next(waiting), watch_.look_who_dies(waiting));
  }
  // Whether others may have missed this process, as it did not run.
  bool was_away() const { return watch_.WasAway(MonotonicNow()); }

  // Courier, for the bus.
  void SendEventsUp(std::string packed) override { Send(LinkRole::kParent, packed); }
  void SendPlanDown(const std::string& packed) override { Send(LinkRole::kChild, packed); }

  // Whether all that was queued has left.
  bool flushed() const;
  // The last thing that is done: passes the record of a failure on to the other hosts, and wakes
  // for no socket any more.
  void EndWith(const std::string& failure_record);

 private:
  void Close(const RoleLink& role_link);
  void Send(LinkRole role, const std::string& packed);
  void OnFrame(RoleLink& role_link, const Frame& frame, Nanos now);

  std::vector<RoleLink>& links_;
  WaitPoint& wait_point_;
  Listener& listener_;
  const int turns_between_looks_;
  int launchers_bell_ = -1;
  Watch watch_;
  HostsBus* bus_ = nullptr;
  StoreRelay* relay_ = nullptr;
  bool look_ = true;
  int turns_ = 0;  // since the last look
};

}  // namespace rueda
