// What the launcher, its agents and its supervisor processes tell each other about a job. Ranks are
// world ranks. PURE
#pragma once

#include <cstdint>
#include <string>

namespace rueda {

enum class MessageKind : int32_t {
  kSignal,   // to the supervisor: value = a signal that was sent to ruedarun; from an agent: that
             // it got one, which its supervisor knows
  kEndJob,   // to the supervisor: the job has failed on another host
  kVerdict,  // to the supervisor: rank, pid, value, blames: how that of another host ended
  kRankStarted,  // rank, pid
  kStartFailed,  // rank, value = errno: no process could be made for it
  kPinFailed,    // rank, value = errno: it can't be pinned to its core
  kExecFailed,   // rank, value = errno: it can't become the program
  kRankEnded,    // rank, pid, value = its wait status, flags
  kFinished,     // value = the job's exit code, as far as this host knows
  kLost,         // from what stands between: nothing more will come from this host
  kAsk,          // to the supervisor: is it there?
  kHere,         // it is
  // Of elastic jobs; `rank` is a slot.
  kStart,     // to the supervisor: rank, value = how many ranks the job has: start a process there
  kClear,     // to the supervisor: rank: another process begins there, on any host
  kKill,      // to the supervisor: rank: kill it
  kNoMore,    // to the supervisor: nothing will be started here any more
  kToRank,    // to the supervisor: rank, payload: for its process
  kFromRank,  // rank, pid, payload: what its process says
  kKeeps,     // rank, pid: its process has memory that is held open when it ends
  kRankDies,  // rank, pid, value = the wait status that it will have: it does nothing any more
};

struct Message {
  static constexpr int32_t kFirstFailure = 1;
  static constexpr int32_t kEndedByUs = 2;

  MessageKind kind;
  int32_t rank = -1;
  int32_t pid = 0;
  int32_t value = 0;
  int32_t flags = 0;
  int32_t blames = -1;  // kRankEnded: whose fault it was, as the rank had it
  std::string payload = {};
};

}  // namespace rueda
