// The launcher process while an elastic job runs: starts processes where there are hosts for them,
// tells them which membership is next, and goes on when some are lost. What it does is decided by
// two machines, Authority (who is in) and Placement (where processes run); this one carries it out.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/launcher/decide/options.h"
#include "controller/launcher/decide/placement.h"
#include "controller/launcher/front/host_discovery.h"
#include "controller/launcher/front/output.h"
#include "controller/launcher/front/remote_ranks.h"
#include "controller/membership/authority.h"
#include "controller/protocol/rueda.pb.h"
#include "core/base/clock.h"
#include "core/base/unique_fd.h"

namespace rueda {

struct ElasticArgs {
  LaunchOptions options;
  std::string agent;    // the path of ruedarun, the same on all hosts
  launch::Order order;  // what is the same for all hosts
  std::string network_interface;
  Nanos start_timeout = 60 * kSecond;  // of a host
  // The words that start the agent on a host.
  std::function<std::vector<std::string>(const std::string& host, bool is_here)> starter;
  std::vector<HostSlots> hosts;  // at first
};

// Owner: main; its only thread. `signal_fd` as of Front. Without a `discovery` the hosts at first
// are all, for good.
class ElasticFront {
 public:
  ElasticFront(ElasticArgs args, std::unique_ptr<HostDiscovery> discovery, UniqueFd signal_fd,
               Output* output);

  // Until the job is over and everything is printed. The exit code.
  int Run();

 private:
  enum class HostState { kIdle, kStarting, kOrdered, kUp, kClosing };
  struct Host {
    HostState state = HostState::kIdle;
    std::unique_ptr<RemoteRanks> ranks;  // null while idle
    std::string meeting_address;
    bool is_here = false;       // this host
    Nanos since = 0;            // when it was started
    Nanos not_before = 0;       // when it may be again: its processes may live until then
    int unanswered = 0;         // questions
    bool told_of_room = false;  // that it has fewer slots than were named
    int refusal = 0;  // the last time it was tried, it could not run the program: 126, 127

    bool starting() const { return state == HostState::kStarting || state == HostState::kOrdered; }
  };
  struct Process {
    int pid = 0;
    int rank = -1;             // in `membership`
    uint64_t membership = 0;   // the last one; 0: none yet
    Nanos kill_at = kForever;  // when it has not ended by then
    bool removed = false;      // by us
    bool end_is_told = false;
  };

  void Step(const std::vector<pollfd>& waits);
  bool AllGone() const;
  Nanos Deadline() const;
  void OnTime();

  void SetHosts(const std::vector<HostSlots>& hosts);
  void StartHosts();
  void StartHost(int host);
  void OnHostNews(int host);
  void GiveOrder(int host);
  void FailHost(int host, const std::string& why);
  void OnHostGone(int host);
  void CloseIdleHosts();
  void AskHosts();
  bool HostsAreSettled() const;
  bool AllHostsRefuse() const;

  void StartProcesses();
  void OpenFilesOf(Slot slot);
  void OnMessage(int host, const Message& message);
  void OnRankDies(const Message& message);
  void NoteEnd(const Message& message);
  void NoteWhoHasEndedWell();
  void OnKeeps(const Message& message);
  void OnRankEnded(int host, const Message& message);
  void OnProcessEnded(Slot slot, bool well);
  void OnFromRank(const Message& message);

  void Do(const Authority::Actions& actions);
  void Commit();
  void SendRecord(Slot slot);
  void TellThatNothingIsKept();
  void TellOfChange(const Authority::Action& action);
  void Dismiss(Slot slot);
  void Tell(Slot slot, const wire::ToProcess& message);
  void EndJob(const std::string& why);
  void BeginToClose();
  void Close();
  void DropStartingHosts();

  void OnSignals();
  void OnEndingSignal(int signal, const std::string& of);
  void SendTo(Slot slot, const Message& message);
  void SendToAll(const Message& message);
  void Say(const std::string& text);
  void Note(const std::string& text);
  std::string Text(Slot slot) const;
  void Drain();
  int ExitCode() const;

  const ElasticArgs args_;
  const std::unique_ptr<HostDiscovery> discovery_;
  const UniqueFd signal_fd_;
  Output* const output_;
  Placement placement_;
  Authority authority_;
  std::vector<Host> hosts_;  // by Placement's numbers
  std::map<Slot, Process> processes_;
  bool begun_ = false;    // processes may be started
  bool closing_ = false;  // the job is over, or about to be
  bool discovery_fails_ = false;
  bool told_of_few_ = false;  // slots, at the start
  bool told_of_shortage_ = false;
  std::vector<std::string> ended_well_;  // members of the membership that is
  bool has_regrouped_ = false;           // a member has asked for another membership
  bool was_killed_ = false;              // a process, by a signal
  bool has_failed_ = false;              // a process, by itself
  std::set<Slot> has_files_;             // for its output
  bool told_of_no_run_ = false;          // a process has ended well, and was in no membership
  const Nanos started_ = MonotonicNow();
  Nanos now_ = started_;
  Nanos stop_at_ = DeadlineAfter(started_, args_.options.stop_after());  // when all are warned
  Nanos ask_at_ = 0;
  Nanos patience_ = kForever;      // when what does not end is killed
  Nanos disturbed_at_ = kForever;  // when the membership was first, since it began
  std::vector<std::string> story_;
  // How it ends.
  int signal_ = 0;
  int ending_signals_ = 0;
  std::string why_;       // in words, unless it is well
  int last_failure_ = 0;  // exit code of the last process that failed
  int late_failure_ = 0;  // of one that failed when others were done
  int finished_code_ = 0;
  bool lost_host_ = false;  // in the end
};

}  // namespace rueda
