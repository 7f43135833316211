// On which hosts an elastic job has processes: hosts come and go, processes fail and are tried
// again. What fails costs its slot, for a time that grows with each failure; a host that could not
// be reached, or was lost, costs all of its slots. PURE
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/launcher/decide/host_list.h"
#include "core/base/clock.h"
#include "core/base/ids.h"

namespace rueda {

class Placement {
 public:
  struct Options {
    int processes_max = 1;  // at a time, spares included
    // How long a slot or a host is not used after its first failure; twice as long after each
    // further one, at most so long.
    Nanos cooldown_min = kSecond;
    Nanos cooldown_max = 60 * kSecond;
    bool blame_hosts = false;  // a process that fails costs its whole host, for good
    // A host has room for so many slots at least, where it may get more than it has at first.
    int room_min = 1;
  };
  explicit Placement(const Options& options) : options_(options) {}

  // The hosts that there are now, in the order in which they are filled. Those that were there
  // before keep their number.
  struct Changes {
    std::vector<Slot> withdrawn;  // whose processes are to leave
    std::vector<Slot> returned;   // there again, with processes that were to leave
  };
  Changes SetHosts(const std::vector<HostSlots>& hosts);

  // By number, which a name keeps for the job's life.
  int hosts() const { return static_cast<int>(hosts_.size()); }
  const std::string& NameOf(int host) const { return hosts_[static_cast<size_t>(host)].name; }
  int NumberOf(const std::string& name) const;  // -1: there was none of that name
  int HostOf(Slot slot) const;
  Slot FirstSlotOf(int host) const { return hosts_[static_cast<size_t>(host)].first; }
  int RoomOf(int host) const { return hosts_[static_cast<size_t>(host)].room; }
  int SlotsOf(int host) const { return hosts_[static_cast<size_t>(host)].slots; }
  // Whether the host should have processes, and may be tried.
  bool IsWanted(int host, Nanos now) const;
  // Whether it is one of those that there are.
  bool IsThere(int host) const { return hosts_[static_cast<size_t>(host)].slots > 0; }
  // Of the hosts that there are.
  int SlotsThere() const;

  // Its processes can be started, or not any more.
  void OnHostUp(int host) { hosts_[static_cast<size_t>(host)].up = true; }
  void OnHostDown(int host, bool failed, Nanos now);

  // Whether the host is not given up for good.
  bool MayBeTried(int host) const {
    return IsThere(host) && hosts_[static_cast<size_t>(host)].again_at != kForever;
  }

  // A slot to start a process in now, if there is one; then OnStarted is to follow. On each of the
  // hosts in `awaited` is to be one process at least.
  std::optional<Slot> Next(Nanos now, const std::set<int>& awaited = {}) const;
  void OnStarted(Slot slot);
  void OnEnded(Slot slot, bool failed, Nanos now);
  int running() const { return running_; }
  // When Next or IsWanted may say something else, without anything happening.
  Nanos deadline(Nanos now) const;

 private:
  struct Place {
    bool running = false;
    int strikes = 0;
    Nanos again_at = 0;
  };
  struct Host {
    std::string name;
    Slot first = 0;
    int room = 0;   // slots that it can have
    int slots = 0;  // that it has now; 0: it is not there
    int order = 0;
    bool up = false;
    int strikes = 0;
    Nanos again_at = 0;
    std::vector<Place> places;
  };

  int Staying() const;
  bool IsEmpty(int host) const;
  Nanos CooldownAfter(int strikes) const;
  Place& PlaceOf(Slot slot);

  const Options options_;
  std::vector<Host> hosts_;
  std::vector<int> order_;  // numbers of those that are there
  int running_ = 0;         // processes, also those that are to leave
};

}  // namespace rueda
