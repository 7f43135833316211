#include "controller/launcher/front/elastic_front.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "controller/launcher/decide/report.h"
#include "controller/launcher/decide/supervisor.h"
#include "controller/launcher/front/patience.h"
#include "controller/launcher/host/inheritance.h"
#include "controller/launcher/host/job.h"
#include "controller/protocol/codec.h"
#include "core/base/limits.h"
#include "core/base/process.h"
#include "core/base/seconds.h"

namespace rueda {
namespace {

// A host that a script names may get more slots later.
constexpr int kRoomOfHost = 16;
// Of the table at the end.
constexpr size_t kStoryLinesMax = 64;

Nanos Duration(double seconds) {
  return static_cast<Nanos>(seconds * static_cast<double>(kSecond));
}

Authority::Options AuthorityOptions(const LaunchOptions& options) {
  Authority::Options wanted;
  wanted.max = options.max_processes > 0 ? options.max_processes : kElasticProcessesMax;
  wanted.min =
      options.min_processes > 0 ? options.min_processes : std::clamp(options.ranks, 1, wanted.max);
  wanted.regroup_timeout = Duration(options.regroup_timeout_seconds);
  wanted.shortage_timeout = Duration(options.elastic_timeout_seconds);
  wanted.resets_max = options.reset_limit;
  return wanted;
}

// At a time, spares included.
int ProcessesMax(const LaunchOptions& options) {
  if (options.max_processes == 0) return kElasticProcessesMax;
  return std::min(options.max_processes + options.spares, kElasticProcessesMax);
}

Placement::Options PlacementOptions(const LaunchOptions& options, bool may_grow) {
  Placement::Options wanted;
  wanted.processes_max = ProcessesMax(options);
  wanted.cooldown_min = Duration(options.cooldown_seconds_min);
  wanted.cooldown_max = Duration(options.cooldown_seconds_max);
  wanted.blame_hosts = options.blacklist_hosts;
  wanted.room_min = may_grow ? kRoomOfHost : 1;
  return wanted;
}

}  // namespace

ElasticFront::ElasticFront(ElasticArgs args, std::unique_ptr<HostDiscovery> discovery,
                           UniqueFd signal_fd, Output* output)
    : args_(std::move(args)),
      discovery_(std::move(discovery)),
      signal_fd_(std::move(signal_fd)),
      output_(output),
      placement_(PlacementOptions(args_.options, discovery_ != nullptr)),
      authority_(AuthorityOptions(args_.options)) {
  SetHosts(args_.hosts);
}

void ElasticFront::Say(const std::string& text) {
  output_->Say(absl::StrCat("ruedarun: ", text, "\n"));
}

// Said, and told again at the end.
void ElasticFront::Note(const std::string& text) {
  Say(text);
  if (story_.size() < kStoryLinesMax) {
    story_.push_back(
        absl::StrFormat("  %8.1f s  %s", static_cast<double>(now_ - started_) / 1e9, text));
  } else if (story_.size() == kStoryLinesMax) {
    story_.push_back("  and so on");
  }
}

std::string ElasticFront::Text(Slot slot) const {
  const int host = placement_.HostOf(slot);
  std::string text = absl::StrCat("process ", slot);
  const auto it = processes_.find(slot);
  const bool has_rank = it != processes_.end() && it->second.membership > 0;
  const std::string on =
      placement_.hosts() > 1 ? absl::StrCat(" on ", placement_.NameOf(host)) : "";
  if (!has_rank) return absl::StrCat(text, on);
  return absl::StrCat(text, " (rank ", it->second.rank, on, ", pid ", it->second.pid, ")");
}

int ElasticFront::Run() {
  std::vector<pollfd> waits;
  while (!(closing_ && AllGone())) {
    waits = {{signal_fd_.get(), POLLIN, 0}};
    for (const Host& host : hosts_) {
      if (host.ranks != nullptr) host.ranks->AddWaits(&waits);
    }
    output_->AddWaits(&waits);
    if (discovery_ != nullptr) discovery_->AddWaits(&waits);
    const Nanos deadline = Deadline();
    const Nanos left = deadline == kForever ? kForever : deadline - MonotonicNow();
    if (poll(waits.data(), waits.size(), PollTimeoutMs(left)) < 0) continue;
    now_ = MonotonicNow();
    Step(waits);
  }
  Drain();
  return ExitCode();
}

void ElasticFront::Step(const std::vector<pollfd>& waits) {
  if (waits[0].revents != 0) OnSignals();
  const int known = static_cast<int>(hosts_.size());
  for (int host = 0; host < known; ++host) {
    if (hosts_[host].ranks == nullptr) continue;
    hosts_[host].ranks->Advance(waits);
    OnHostNews(host);
  }
  output_->Advance(waits);
  if (output_->reader_gone() && !closing_) {
    Say("nobody reads the output any more; ending the job");
    signal_ = SIGPIPE;
    SendToAll({MessageKind::kSignal, -1, 0, SIGTERM});
    BeginToClose();
  }
  if (discovery_ != nullptr && !closing_) {
    if (auto found = discovery_->Advance(waits, now_)) {
      if (found->ok()) {
        SetHosts(**found);
      } else if (!discovery_fails_) {
        Say(absl::StrCat(found->status().message(), "; the hosts stay as they are"));
      }
      discovery_fails_ = !found->ok();
    }
  }
  OnTime();
}

void ElasticFront::OnTime() {
  if (now_ >= ask_at_) {
    AskHosts();
    ask_at_ = now_ + args_.options.host_timeout() / kQuestions;
  }
  for (auto& [slot, process] : processes_) {
    if (now_ < process.kill_at) continue;
    process.kill_at = kForever;
    SendTo(slot, {MessageKind::kKill, slot});
  }
  if (now_ >= stop_at_) {
    stop_at_ = kForever;
    Note(StopText(args_.options.stop_after()));
    SendToAll({MessageKind::kSignal, -1, 0, SIGUSR1});
  }
  if (now_ >= patience_) {
    patience_ = kForever;
    for (Host& host : hosts_) {
      if (host.ranks != nullptr) host.ranks->Kill();
    }
  }
  if (closing_) return;
  Authority::Actions actions;
  authority_.OnTime(now_, &actions);
  Do(actions);
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    const Host& each = hosts_[host];
    if (each.starting() && now_ >= each.since + args_.start_timeout) {
      const std::string noise = each.ranks->LastNoise();
      FailHost(host, absl::StrCat("not ready after ", Seconds(args_.start_timeout),
                                  " (--start-timeout)", noise.empty() ? "" : ": ", noise));
    }
  }
  StartHosts();
  StartProcesses();
  CloseIdleHosts();
  const bool is_short = authority_.is_short();
  if (!std::exchange(told_of_shortage_, is_short) && is_short) {
    Say(absl::StrCat("there are fewer processes than --min-np; waiting for more, at most ",
                     Seconds(Duration(args_.options.elastic_timeout_seconds)),
                     " (--elastic-timeout)"));
  }
}

Nanos ElasticFront::Deadline() const {
  Nanos next = std::min({patience_, ask_at_, output_->deadline()});
  for (const auto& [slot, process] : processes_) next = std::min(next, process.kill_at);
  if (closing_) return next;
  next = std::min({next, stop_at_, authority_.deadline(), placement_.deadline(now_)});
  if (discovery_ != nullptr) next = std::min(next, discovery_->deadline());
  for (const Host& host : hosts_) {
    if (host.starting()) next = std::min(next, host.since + args_.start_timeout);
    if (host.not_before > now_) next = std::min(next, host.not_before);
  }
  if (!begun_) next = std::min(next, started_ + Duration(args_.options.elastic_timeout_seconds));
  return next;
}

// Hosts -----------------------------------------------------------------------------------------

void ElasticFront::SetHosts(const std::vector<HostSlots>& hosts) {
  const int before = placement_.hosts();
  std::vector<bool> was_there;
  for (int host = 0; host < before; ++host) was_there.push_back(placement_.IsThere(host));
  const Placement::Changes changes = placement_.SetHosts(hosts);
  hosts_.resize(static_cast<size_t>(placement_.hosts()));
  for (const HostSlots& each : hosts) {
    const int host = placement_.NumberOf(each.name);
    if (each.slots <= placement_.RoomOf(host) || hosts_[host].told_of_room) continue;
    hosts_[host].told_of_room = true;
    Say(absl::StrCat("host ", each.name, ": ", placement_.RoomOf(host), " of its ", each.slots,
                     " slots are used: a host that grows has room for no more"));
  }
  for (int host = 0; host < placement_.hosts(); ++host) {
    const bool was = host < before && was_there[host];
    const bool is = placement_.IsThere(host);
    if (was == is) continue;
    hosts_[host].refusal = 0;
    if (begun_) {
      Note(absl::StrCat("host ", placement_.NameOf(host), is ? " is there" : " is to be left"));
    }
  }
  Authority::Actions actions;
  for (int host = 0; host < before; ++host) {
    if (!placement_.IsThere(host)) authority_.OnHostGone(host, now_, &actions);
  }
  for (const Slot slot : changes.withdrawn) authority_.OnWithdrawn(slot, now_, &actions);
  for (const Slot slot : changes.returned) authority_.OnReturned(slot, now_, &actions);
  Do(actions);
}

bool ElasticFront::AllGone() const {
  return std::all_of(hosts_.begin(), hosts_.end(),
                     [](const Host& host) { return host.ranks == nullptr; });
}

// As many as there are processes for.
void ElasticFront::StartHosts() {
  if (authority_.finishing()) return;
  int room = 0;
  for (int host = 0; host < placement_.hosts(); ++host) {
    if (room >= ProcessesMax(args_.options)) return;
    Host& each = hosts_[host];
    if (!placement_.IsWanted(host, now_) || now_ < each.not_before) continue;
    if (each.state == HostState::kIdle) StartHost(host);
    if (each.state != HostState::kIdle) room += placement_.SlotsOf(host);
  }
}

void ElasticFront::StartHost(int number) {
  Host& host = hosts_[number];
  JobHost place;
  place.name = placement_.NameOf(number);
  place.is_here = host.is_here = IsThisHost(place.name).value_or(false);
  const int first = placement_.FirstSlotOf(number);
  const int room = std::min(placement_.RoomOf(number), kElasticProcessesMax - first);
  if (room <= 0) return;  // a job has had that many
  place.share = {kElasticProcessesMax,
                 first,
                 room,
                 number,
                 placement_.hosts(),
                 std::max(1, args_.options.ranks),
                 std::min(placement_.SlotsOf(number), room)};
  absl::StatusOr<std::unique_ptr<RemoteRanks>> ranks =
      RemoteRanks::Start(place, args_.starter(place.name, place.is_here), args_.agent, output_);
  if (!ranks.ok()) {
    Say(absl::StrCat("host ", place.name, ": ", ranks.status().message()));
    placement_.OnHostDown(number, /*failed=*/true, now_);
    return;
  }
  host.ranks = *std::move(ranks);
  host.state = HostState::kStarting;
  host.refusal = 0;
  host.since = now_;
  host.unanswered = 0;
  output_->MakeRoomForFeeds(args_.options.prefix, first + room);
}

void ElasticFront::OnHostNews(int number) {
  Host& host = hosts_[number];
  if (host.starting()) {
    if (host.ranks->refusal().has_value()) {
      const launch::Refusal refusal = *host.ranks->refusal();
      FailHost(number, refusal.why());
      const bool is_program =
          refusal.exit_code() == kNotFound || refusal.exit_code() == kNotExecutable;
      if (is_program) host.refusal = refusal.exit_code();
      return;
    }
    if (host.ranks->gone()) return FailHost(number, host.ranks->WhyGone());
  }
  if (host.state == HostState::kStarting && host.ranks->hello().has_value()) GiveOrder(number);
  if (host.state == HostState::kOrdered && host.ranks->ready().has_value()) {
    launch::ToAgent message;
    *message.mutable_start() = host.ranks->ready()->meeting();
    host.ranks->Send(message);
    host.ranks->SetRunning();
    host.meeting_address = message.start().address();
    host.state = HostState::kUp;
    placement_.OnHostUp(number);
  }
  Message message;
  while (host.ranks != nullptr && host.ranks->Receive(&message)) {
    host.unanswered = 0;
    OnMessage(number, message);
  }
  if (host.ranks != nullptr && host.ranks->gone()) OnHostGone(number);
}

void ElasticFront::GiveOrder(int number) {
  Host& host = hosts_[number];
  const launch::Hello& hello = *host.ranks->hello();
  if (hello.version() != VersionText()) {
    return FailHost(
        number, absl::StrCat(args_.agent, " there is ", absl::StripSuffix(hello.version(), "\n"),
                             ", and here ", absl::StripSuffix(VersionText(), "\n"),
                             ": all hosts need the same"));
  }
  launch::ToAgent message;
  launch::Order& order = *message.mutable_order();
  order = args_.order;
  const int first = placement_.FirstSlotOf(number);
  const int room = std::min(placement_.RoomOf(number), kElasticProcessesMax - first);
  order.set_size(std::max(1, args_.options.ranks));
  order.set_first_rank(first);
  order.set_ranks(room);
  order.set_host(number);
  order.set_hosts(placement_.hosts());
  order.set_slots(kElasticProcessesMax);
  order.set_slots_here(std::min(placement_.SlotsOf(number), room));
  order.set_host_name(placement_.NameOf(number));
  order.set_network_interface(args_.network_interface);
  const int other = number == 0 ? placement_.hosts() - 1 : 0;
  if (other != number) order.set_other_host(placement_.NameOf(other));
  if (host.is_here) order.clear_lifeline();
  host.ranks->Send(message);
  host.state = HostState::kOrdered;
}

// It could not be started.
void ElasticFront::FailHost(int number, const std::string& why) {
  Host& host = hosts_[number];
  Say(absl::StrCat("host ", placement_.NameOf(number), ": ", why));
  host.ranks = nullptr;
  host.state = HostState::kIdle;
  placement_.OnHostDown(number, /*failed=*/true, now_);
}

// What happened to its processes is not known, unless it has been told to close.
void ElasticFront::OnHostGone(int number) {
  Host& host = hosts_[number];
  const bool lost = host.state != HostState::kClosing;
  if (lost) {
    Note(host.ranks->loss());
    lost_host_ = true;
    // What is left there ends by then.
    host.not_before = now_ + args_.options.host_timeout();
  }
  host.ranks = nullptr;
  host.state = HostState::kIdle;
  placement_.OnHostDown(number, lost, now_);
  Authority::Actions actions;
  authority_.OnHostGone(number, now_, &actions);
  Do(actions);
  std::vector<Slot> slots;
  for (const auto& [slot, process] : processes_) {
    if (placement_.HostOf(slot) == number) slots.push_back(slot);
  }
  for (const Slot slot : slots) OnProcessEnded(slot, /*well=*/false);
}

void ElasticFront::CloseIdleHosts() {
  for (int number = 0; number < static_cast<int>(hosts_.size()); ++number) {
    Host& host = hosts_[number];
    if (host.state != HostState::kUp || placement_.IsThere(number)) continue;
    const bool has_some = std::any_of(processes_.begin(), processes_.end(), [&](const auto& each) {
      return placement_.HostOf(each.first) == number;
    });
    if (has_some) continue;
    host.ranks->Send({MessageKind::kNoMore});
    host.state = HostState::kClosing;
  }
}

void ElasticFront::AskHosts() {
  for (Host& host : hosts_) {
    if (host.ranks == nullptr || (host.state != HostState::kUp && !closing_)) continue;
    if (output_->full()) host.unanswered = 0;
    if (host.unanswered++ == kQuestions - 1) {
      host.ranks->Kill();
    } else {
      host.ranks->Send({MessageKind::kAsk});
    }
  }
}

// Whether those that there are have been tried.
bool ElasticFront::HostsAreSettled() const {
  return std::none_of(hosts_.begin(), hosts_.end(),
                      [](const Host& host) { return host.starting(); });
}

// Of those that there are. That they are enough is for the caller to see.
bool ElasticFront::AllHostsRefuse() const {
  for (int host = 0; host < placement_.hosts(); ++host) {
    if (placement_.IsThere(host) && hosts_[host].refusal == 0) return false;
  }
  return true;
}

// Processes -------------------------------------------------------------------------------------

void ElasticFront::StartProcesses() {
  if (!begun_) {
    int up = 0;
    for (int host = 0; host < placement_.hosts(); ++host) {
      if (hosts_[host].state == HostState::kUp) up += placement_.SlotsOf(host);
    }
    const int wanted = std::max(1, args_.options.ranks);
    const int min = AuthorityOptions(args_.options).min;
    if (HostsAreSettled() && up >= std::min(min, wanted)) {
      begun_ = true;
    } else if (placement_.SlotsThere() >= std::min(min, wanted) && AllHostsRefuse()) {
      for (const Host& host : hosts_) last_failure_ = std::max(last_failure_, host.refusal);
      return EndJob("no host can run the program");
    } else if (now_ >= started_ + Duration(args_.options.elastic_timeout_seconds)) {
      return EndJob(absl::StrCat("there were ", up, " slots after ",
                                 Seconds(Duration(args_.options.elastic_timeout_seconds)),
                                 " (--elastic-timeout), and --min-np is ", min));
    } else {
      if (HostsAreSettled() && !std::exchange(told_of_few_, true)) {
        Say(absl::StrCat("there are ", up, up == 1 ? " slot" : " slots", ", and --min-np is ", min,
                         "; waiting for more, at most ",
                         Seconds(Duration(args_.options.elastic_timeout_seconds)),
                         " (--elastic-timeout)"));
      }
      return;
    }
  }
  if (authority_.finishing() || authority_.over()) return;
  while (const std::optional<Slot> slot = placement_.Next(now_, authority_.Awaited())) {
    placement_.OnStarted(*slot);
    authority_.OnStarted(*slot, placement_.HostOf(*slot), now_);
    processes_[*slot] = Process();
    OpenFilesOf(*slot);
    SendToAll({MessageKind::kClear, *slot});
    const int ranks = static_cast<int>(authority_.record().slots.size());
    SendTo(*slot, {MessageKind::kStart, *slot, 0, ranks});
  }
}

// Where its output goes, that of all processes of the slot one after the other.
void ElasticFront::OpenFilesOf(Slot slot) {
  if (args_.options.output_dir.empty() || !has_files_.insert(slot).second) return;
  RankStreams files;
  const absl::Status opened = OpenOutputFiles(args_.options.output_dir, slot, &files);
  if (!opened.ok()) return Say(absl::StrCat(opened.message(), "; its output comes here"));
  output_->FeedToFiles(slot, std::move(files));
}

void ElasticFront::OnMessage(int host, const Message& message) {
  switch (message.kind) {
    case MessageKind::kRankStarted:
      processes_[message.rank].pid = message.pid;
      if (args_.options.verbose) {
        Say(absl::StrCat(Text(message.rank), " started, pid ", message.pid));
      }
      break;
    case MessageKind::kStartFailed:
      Say(absl::StrCat(Text(message.rank), ": can't start a process: ", strerror(message.value)));
      OnProcessEnded(message.rank, /*well=*/false);
      break;
    case MessageKind::kPinFailed:
    case MessageKind::kExecFailed:
      Say(absl::StrCat(Text(message.rank),
                       message.kind == MessageKind::kPinFailed ? ": can't pin it to its core: "
                                                               : ": can't execute the program: ",
                       strerror(message.value)));
      break;
    case MessageKind::kRankDies:
      OnRankDies(message);
      break;
    case MessageKind::kKeeps:
      OnKeeps(message);
      break;
    case MessageKind::kRankEnded:
      OnRankEnded(host, message);
      break;
    case MessageKind::kFromRank:
      OnFromRank(message);
      break;
    case MessageKind::kFinished:
      if (finished_code_ == 0) finished_code_ = message.value;
      hosts_[host].state = HostState::kClosing;
      break;
    case MessageKind::kSignal:
      OnEndingSignal(message.value, absl::StrCat(" to the agent on ", placement_.NameOf(host)));
      break;
    default:
      break;
  }
}

// Its end follows.
void ElasticFront::OnRankDies(const Message& message) {
  const auto it = processes_.find(message.rank);
  // Of one that is ended with the job the end itself tells whose doing it was.
  if (closing_ || it == processes_.end() || it->second.pid != message.pid) return;
  NoteEnd(message);
  if (authority_.IsMember(message.rank) && disturbed_at_ == kForever) disturbed_at_ = now_;
  Authority::Actions actions;
  authority_.OnDying(message.rank, now_, &actions);
  Do(actions);
  if (authority_.over() && !closing_) Close();
}

void ElasticFront::OnKeeps(const Message& message) {
  const auto it = processes_.find(message.rank);
  if (closing_ || it == processes_.end() || it->second.pid != message.pid) return;
  Authority::Actions actions;
  authority_.OnKeeps(message.rank, &actions);
  Do(actions);
}

void ElasticFront::OnRankEnded(int number, const Message& message) {
  const auto it = processes_.find(message.rank);
  if (it == processes_.end()) return;
  it->second.pid = message.pid;
  // The others of its membership wait for the verdict.
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    if (host == number || hosts_[host].ranks == nullptr) continue;
    hosts_[host].ranks->Send(
        {MessageKind::kVerdict, message.rank, message.pid, message.value, 0, message.blames});
  }
  NoteEnd(message);
  OnProcessEnded(message.rank, message.value == 0);
}

// Once, as soon as it is known how it ends.
void ElasticFront::NoteEnd(const Message& message) {
  Process& process = processes_[message.rank];
  if (std::exchange(process.end_is_told, true)) return;
  const bool well = message.value == 0;
  const bool by_us = (message.flags & Message::kEndedByUs) != 0 || process.removed;
  if (!well && !by_us) {
    last_failure_ = ExitCodeOf(message.value);
    if (authority_.finishing() && authority_.IsMember(message.rank)) late_failure_ = last_failure_;
  }
  was_killed_ |= WIFSIGNALED(message.value);
  has_failed_ |= !by_us && WIFEXITED(message.value) && !well;
  const std::string text = absl::StrCat(Text(message.rank), " ", WaitStatusText(message.value));
  if (well && authority_.IsMember(message.rank)) ended_well_.push_back(text);
  if (!well && !closing_) {
    Note(text);
  } else if (args_.options.verbose) {
    Say(text);
  }
}

// Of the others' next membership, or the job's end, it is the cause; else all have ended so.
void ElasticFront::NoteWhoHasEndedWell() {
  for (const std::string& each : std::exchange(ended_well_, {})) {
    Note(absl::StrCat(each, " before the others; it is not replaced"));
  }
}

void ElasticFront::OnProcessEnded(Slot slot, bool well) {
  const auto it = processes_.find(slot);
  if (it == processes_.end()) return;
  const bool was_dismissed = it->second.kill_at != kForever;
  const bool was_alone = it->second.membership == 0 && authority_.record().number > 0;
  processes_.erase(it);
  // It has done all of the work by itself, and the next one would, too.
  const bool was_in_vain = well && was_alone && !was_dismissed && !closing_;
  if (was_in_vain && !std::exchange(told_of_no_run_, true)) {
    Note(absl::StrCat(Text(slot),
                      " has ended without the others: does the program call "
                      "elastic.run?"));
  }
  placement_.OnEnded(slot, !well || was_in_vain, now_);
  if (authority_.IsMember(slot) && disturbed_at_ == kForever) disturbed_at_ = now_;
  Authority::Actions actions;
  const int host = placement_.HostOf(slot);
  if (!placement_.MayBeTried(host)) authority_.OnHostGone(host, now_, &actions);
  authority_.OnEnded(slot, well, now_, &actions);
  Do(actions);
  if (authority_.over() && !closing_) Close();
}

void ElasticFront::OnFromRank(const Message& message) {
  const auto it = processes_.find(message.rank);
  if (it == processes_.end() || it->second.pid != message.pid) return;  // of one that is gone
  wire::Ask ask;
  if (!ParseMessage(message.payload, &ask).ok()) return;
  if (authority_.IsMember(message.rank)) {
    has_regrouped_ = true;
    if (disturbed_at_ == kForever) disturbed_at_ = now_;
  }
  Authority::Actions actions;
  authority_.OnAsk(message.rank, {ask.membership(), ask.commits(), ask.blames()}, now_, &actions);
  Do(actions);
}

// What the authority has decided ----------------------------------------------------------------

void ElasticFront::Do(const Authority::Actions& actions) {
  for (const Authority::Action& action : actions) {
    switch (action.kind) {
      case Authority::ActionKind::kCommit:
        Commit();
        break;
      case Authority::ActionKind::kRepeat:
        SendRecord(action.slot);
        break;
      case Authority::ActionKind::kTellOfChange:
        TellOfChange(action);
        break;
      case Authority::ActionKind::kDismiss:
        Dismiss(action.slot);
        break;
      case Authority::ActionKind::kRemove:
        Note(absl::StrCat(Text(action.slot), " is removed: ", action.text));
        processes_[action.slot].removed = true;
        SendTo(action.slot, {MessageKind::kKill, action.slot});
        break;
      case Authority::ActionKind::kNothingKept:
        TellThatNothingIsKept();
        break;
      case Authority::ActionKind::kEndJob:
        EndJob(action.text);
        break;
    }
  }
}

void ElasticFront::Commit() {
  NoteWhoHasEndedWell();
  const MembershipRecord& record = authority_.record();
  std::vector<std::string> joined;
  for (size_t rank = 0; rank < record.slots.size(); ++rank) {
    const Slot slot = record.slots[rank];
    Process& process = processes_[slot];
    process.rank = static_cast<int>(rank);
    process.membership = record.number;
    if (static_cast<int>(rank) >= record.survivors) joined.push_back(absl::StrCat(slot));
    SendRecord(slot);
  }
  if (record.number > 1) {
    const std::string gap =
        disturbed_at_ == kForever
            ? ""
            : absl::StrFormat(" after %.3f s", static_cast<double>(now_ - disturbed_at_) / 1e9);
    const std::string more = joined.empty()
                                 ? ""
                                 : absl::StrCat(joined.size() == 1 ? "; process " : "; processes ",
                                                absl::StrJoin(joined, ", "), " joined");
    Note(absl::StrCat("membership ", record.number, " of ", record.slots.size(),
                      record.slots.size() == 1 ? " rank" : " ranks", gap, more));
  } else if (args_.options.verbose) {
    Say(absl::StrCat("membership 1 of ", record.slots.size(), " ranks"));
  }
  disturbed_at_ = kForever;
  if (record.keeping == 0) return;
  std::vector<std::string> keeping;
  for (const int host : authority_.Awaited()) keeping.push_back(placement_.NameOf(host));
  Say(absl::StrCat("what lost ranks had alone is kept on ", absl::StrJoin(keeping, ", "),
                   "; who needs it waits for the next rank there, at most ",
                   Seconds(Duration(args_.options.elastic_timeout_seconds)),
                   " (--elastic-timeout)"));
}

void ElasticFront::SendRecord(Slot slot) {
  const MembershipRecord& record = authority_.record();
  wire::ToProcess message;
  wire::Record& wire = *message.mutable_record();
  wire.set_membership(record.number);
  bool several = false;
  for (size_t rank = 0; rank < record.slots.size(); ++rank) {
    const int host = placement_.HostOf(record.slots[rank]);
    several |= host != placement_.HostOf(record.slots[0]);
    wire.add_slots(record.slots[rank]);
    wire.add_hosts(host);
    if (record.slots[rank] == slot) wire.set_rank(static_cast<int>(rank));
  }
  wire.set_survivors(record.survivors);
  wire.set_source(record.source);
  wire.set_keeping(record.keeping);
  if (several) wire.set_meeting_address(hosts_[wire.hosts(0)].meeting_address);
  Tell(slot, message);
}

void ElasticFront::TellThatNothingIsKept() {
  wire::ToProcess message;
  message.mutable_nothing_kept();
  for (const Slot slot : authority_.record().slots) Tell(slot, message);
}

void ElasticFront::TellOfChange(const Authority::Action& action) {
  wire::ToProcess message;
  message.mutable_change()->set_added(action.added);
  for (const Slot slot : action.leaving) message.mutable_change()->add_leaving(slot);
  for (const Slot slot : authority_.record().slots) Tell(slot, message);
}

void ElasticFront::Dismiss(Slot slot) {
  wire::ToProcess message;
  message.set_dismissal(authority_.over() ? "the job is over"
                                          : "the launcher does not use this slot any more");
  Tell(slot, message);
  const auto it = processes_.find(slot);
  if (it != processes_.end()) it->second.kill_at = now_ + args_.options.grace();
}

void ElasticFront::Tell(Slot slot, const wire::ToProcess& message) {
  SendTo(slot, {MessageKind::kToRank, slot, 0, 0, 0, -1, message.SerializeAsString()});
}

void ElasticFront::EndJob(const std::string& why) {
  if (closing_) return;
  why_ = why;
  NoteWhoHasEndedWell();
  Note(absl::StrCat(why, "; the job ends"));
  if (authority_.record().number == 1 && !has_regrouped_ && was_killed_ && has_failed_) {
    Say("none of its ranks has asked for another membership: does the program call elastic.run?");
  }
  SendToAll({MessageKind::kEndJob});
  BeginToClose();
}

// All of the last membership are done.
void ElasticFront::Close() {
  SendToAll({MessageKind::kNoMore});
  BeginToClose();
}

void ElasticFront::BeginToClose() {
  closing_ = true;
  DropStartingHosts();
  patience_ = std::min(patience_, now_ + args_.options.grace() + kSupervisorSlack);
}

// A host that is not up yet has nothing to end.
void ElasticFront::DropStartingHosts() {
  for (Host& host : hosts_) {
    if (!host.starting()) continue;
    host.ranks = nullptr;
    host.state = HostState::kIdle;
  }
}

// The rest --------------------------------------------------------------------------------------

void ElasticFront::OnSignals() {
  while (const int signal = NextSignal(signal_fd_.get())) {
    SendToAll({MessageKind::kSignal, -1, 0, signal});
    if (EndsJob(signal)) {
      OnEndingSignal(signal, "");
      if (ending_signals_++ > 0) patience_ = std::min(patience_, now_ + kSupervisorSlack);
    }
    if (signal == SIGTSTP) kill(getpid(), SIGSTOP);
  }
}

void ElasticFront::OnEndingSignal(int signal, const std::string& of) {
  if (signal_ != 0) return;
  signal_ = signal;
  if (!of.empty()) {
    Note(absl::StrCat(SignalName(signal), of, "; the job ends"));
    SendToAll({MessageKind::kEndJob});
  }
  BeginToClose();
}

void ElasticFront::SendTo(Slot slot, const Message& message) {
  const int host = placement_.HostOf(slot);
  if (host >= 0 && hosts_[host].ranks != nullptr) hosts_[host].ranks->Send(message);
}

void ElasticFront::SendToAll(const Message& message) {
  for (Host& host : hosts_) {
    const bool hears = host.state == HostState::kUp || host.state == HostState::kClosing;
    if (hears && host.ranks != nullptr) host.ranks->Send(message);
  }
}

void ElasticFront::Drain() {
  now_ = MonotonicNow();
  if (ending_signals_ > 0) patience_ = now_ + kDrainWhenAsked;
  std::vector<pollfd> waits;
  bool told = false;
  while (true) {
    const bool waited_enough = MonotonicNow() >= patience_;
    if (waited_enough) output_->GiveUp();
    if (output_->TakeLast() && !told) {
      told = true;
      if (!story_.empty()) {
        output_->Say(absl::StrCat("ruedarun: the job ", ExitCode() == 0 ? "is done" : "has failed",
                                  " after ", Seconds(now_ - started_), "; exit status ", ExitCode(),
                                  "\n", absl::StrJoin(story_, "\n"), "\n"));
      }
      output_->TakeLast();
    }
    if (waited_enough || (told && output_->flushed())) return;
    waits = {{signal_fd_.get(), POLLIN, 0}};
    output_->AddWaits(&waits);
    const Nanos left = patience_ == kForever ? kForever : patience_ - MonotonicNow();
    if (poll(waits.data(), waits.size(), PollTimeoutMs(left)) >= 0 && waits[0].revents != 0) {
      while (NextSignal(signal_fd_.get()) != 0) patience_ = MonotonicNow();
    }
  }
}

int ElasticFront::ExitCode() const {
  if (signal_ == SIGPIPE) return lost_host_ || finished_code_ != 0 ? 128 + SIGPIPE : 0;
  if (signal_ != 0) return 128 + signal_;
  if (!why_.empty()) return last_failure_ != 0 ? last_failure_ : 1;
  return late_failure_;
}

}  // namespace rueda
