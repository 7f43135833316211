// Who is in the next membership of an elastic job, and when it begins. The launcher has the one
// that decides; what it commits is what everybody follows, and a process that it can't reach does
// not go on.
//
// A process asks for the next membership when it begins, when its membership has failed, or at a
// commit where all have agreed that a change is due. When every member that lives has asked there
// is a new one: of these, in their old order, and of the newcomers that have asked by then. Nobody
// waits for a process that is only being started. A member that does not ask in time is removed. So
// is one, with its host, that others take for lost again and again though it asks as they do: what
// is lost then is the network between them.
//
// A host may keep what its ranks had alone when all of them are lost. Then one of the next ranks is
// to be there, whoever else has come, and until that has what it needs nobody leaves.
// PURE
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/ids.h"

namespace rueda {

struct MembershipRecord {
  uint64_t number = 0;      // 0: there was none yet
  std::vector<Slot> slots;  // by rank
  int survivors = 0;        // so many were in the one before, and have the lowest ranks
  Rank source = 0;          // a survivor whose state is the newest; of the first membership: rank 0
  int keeping = 0;  // hosts without a rank that keep what ranks had alone, and may get new ones
};

class Authority {
 public:
  struct Options {
    int min = 1;  // processes of a membership
    int max = 1;
    // How long members may take to ask once one of them has.
    Nanos regroup_timeout = 10 * kSecond;
    // How long fewer than `min` may last; and how long the first membership waits for processes
    // that were started and have not asked, once there are `min`.
    Nanos shortage_timeout = 600 * kSecond;
    int resets_max = -1;  // memberships after the first one; -1: as many as you like
  };
  struct Ask {
    uint64_t membership = 0;  // the last record that the process has got; 0: none
    uint64_t commits = 0;     // how many its state has seen
    Slot blames = kNoSlot;    // whom it takes for lost
  };

  enum class ActionKind {
    kCommit,        // record() goes to all of its members
    kRepeat,        // record() goes to the process in `slot`, which has asked twice
    kTellOfChange,  // to the members: at the next commit they are to ask; `added`, `leaving`
    kDismiss,       // the process in `slot` is not wanted any more, and ends in order
    kRemove,        // the process in `slot` is to be killed; `text`: why
    kNothingKept,   // to the members: record().keeping is 0 now
    kEndJob,        // `text`: why
  };
  struct Action {
    ActionKind kind;
    Slot slot = kNoSlot;
    std::string text;
    bool added = false;
    std::vector<Slot> leaving = {};
  };
  using Actions = std::vector<Action>;

  explicit Authority(const Options& options) : options_(options) {}

  // A process is being started in a slot that has none; `host`: a number.
  void OnStarted(Slot slot, int host, Nanos now);
  // It is gone, or out of reach for good.
  void OnEnded(Slot slot, bool well, Nanos now, Actions* out);
  // It does nothing any more, and its end is to come: nobody waits for that.
  void OnDying(Slot slot, Nanos now, Actions* out);
  void OnAsk(Slot slot, const Ask& ask, Nanos now, Actions* out);
  // The process in the slot is to leave, as its host is taken away: with the next membership that
  // all members have agreed on and where they know of it, so that it can hand over what it has. If
  // all are to leave, one stays until another process has come to whom it can.
  void OnWithdrawn(Slot slot, Nanos now, Actions* out);
  // It may stay after all, unless it has been told to end.
  void OnReturned(Slot slot, Nanos now, Actions* out);
  // The member in the slot has kept something that its host keeps when it is lost. It has got what
  // was kept there before.
  void OnKeeps(Slot slot, Actions* out);
  // The host keeps nothing any more, or gets no more processes.
  void OnHostGone(int host, Nanos now, Actions* out);
  // To be called when deadline() has come.
  void OnTime(Nanos now, Actions* out);
  Nanos deadline() const;
  // The hosts that record().keeping counts.
  std::set<int> Awaited() const { return AwaitedBy(Members()); }

  const MembershipRecord& record() const { return record_; }
  // A member has ended well: the job comes to its end, and nobody need be started any more.
  bool finishing() const { return finishing_; }
  bool over() const { return over_; }
  // The members wait for more processes.
  bool is_short() const { return record_.number > 0 && shortage_since_ != kForever && !over_; }
  bool IsMember(Slot slot) const;

 private:
  // How long it waits for the end of processes that it removes: those of another host may be out of
  // reach.
  static constexpr Nanos kRemovePatience = 300 * kMillisecond;
  // How long one that others take for lost may take to ask when all others have.
  static constexpr Nanos kBlamedPatience = 300 * kMillisecond;

  // The same of others on its host, none of whom has asked either: the host may be cut off, and
  // those who accuse it have heard of one of them.
  static constexpr Nanos kHostPatience = 500 * kMillisecond;
  // Memberships that ended with somebody blamed, and no commit or end of a process since the first.
  static constexpr int kInVainMax = 2;

  struct Process {
    int host = 0;
    bool member = false;  // of record_
    bool asked = false;
    bool withdrawn = false;
    bool told_to_leave = false;  // the members were
    bool removed = false;
    bool dies = false;  // it asks no more
    bool keeps = false;
    bool stateless = false;  // it came with record_, and had not got the state when it asked
    Ask ask;
  };

  bool regrouping() const { return asked_since_ != kForever; }
  // Whether the next membership waits for it.
  bool MustAsk(const Process& process) const {
    return !process.removed && !process.dies && (record_.number == 0 || process.member);
  }
  // Whether it is in the membership that would begin now.
  bool Stays(const Process& process) const {
    const bool leaves = process.withdrawn && !(process.member && IsKeptOn(process));
    return process.asked && !leaves && !process.removed;
  }
  // Though it is withdrawn: the others would have no part in its leaving.
  bool IsKeptOn(const Process& process) const {
    return lost_some_ || !process.told_to_leave || !Awaited().empty();
  }
  // No member lives any more that has the state: the job ends. Whether that is so.
  bool EndWithoutMembers(Actions* out);
  bool IsNewIn(Slot slot) const;
  std::vector<Slot> Missing() const;
  bool IsBlamed(Slot slot) const;
  bool AreOnBlamedHosts(const std::vector<Slot>& missing) const;
  void Remove(const std::vector<Slot>& slots, const std::string& why, Nanos now, Actions* out);
  uint64_t NewestCommits() const;
  // Whether others take a member for lost that has asked as they have.
  bool IsBlamedInVain() const;
  // Those to go on without.
  std::vector<Slot> Unreachable() const;
  // Whether it has come, and is no member yet.
  static bool Waits(const Process& process) {
    return process.asked && !process.member && !process.withdrawn && !process.removed;
  }
  std::set<int> AwaitedBy(const std::vector<Slot>& members) const;
  std::vector<Slot> Members() const;    // of record_ that are still there, by rank
  std::vector<Slot> Survivors() const;  // those of them that stay
  // Those that come in beside these.
  std::vector<Slot> Newcomers(const std::vector<Slot>& members) const;
  void Lose(Process* process, Nanos now);
  void TellOfKeeping(Actions* out);
  std::vector<Slot> Leaving() const;
  void TellOfChange(Actions* out);
  void TryCommit(Nanos now, Actions* out);
  void Commit(Actions* out);
  void End(std::string why, Actions* out);

  const Options options_;
  MembershipRecord record_;
  std::map<Slot, Process> processes_;
  Nanos asked_since_ = kForever;     // by a member (of the first membership: by anybody)
  Nanos asked_last_ = 0;             // likewise
  Nanos removed_at_ = 0;             // the last time that one was
  uint64_t commits_ = 0;             // the newest, when record_ began
  bool lost_some_ = false;           // a member, since then
  int in_vain_ = 0;                  // memberships, record_ not among them
  std::map<int, Nanos> kept_until_;  // by host: it keeps what lost ranks had
  Nanos shortage_since_ = kForever;  // fewer than `min` could begin
  bool told_added_ = false;          // that some are to be, at the next commit
  bool finishing_ = false;
  bool over_ = false;
  Nanos deadline_ = kForever;
};

}  // namespace rueda
