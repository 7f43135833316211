#include "controller/launcher/front/start_agents.h"

#include <poll.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "controller/launcher/decide/supervisor.h"
#include "controller/launcher/host/inheritance.h"
#include "controller/launcher/host/job.h"

namespace rueda {
namespace {

// When one host has failed: how long the others have to say whether they do too.
constexpr Nanos kOthersPatience = 2 * kSecond;
// How long agents and remote shells may take to end once they are told to.
constexpr Nanos kEndPatience = 2 * kSecond;
// How long after a host could not be reached it is tried again.
constexpr Nanos kAgainAfter = kSecond;
// What ssh, and shells like it, say of hosts that may come up yet: pods whose names or servers are
// late. What the user has to mend is not among it.
constexpr absl::string_view kMayComeUp[] = {
    "Could not resolve hostname",
    "Name or service not known",
    "Temporary failure in name resolution",
    "Connection refused",
    "Connection closed by",
    "Connection reset by",
    "No route to host",
    "Network is unreachable",
    "timed out",
};

class AgentsStart {
 public:
  AgentsStart(const AgentsArgs& args, Output* output)
      : args_(args),
        output_(output),
        failed_(args.hosts.size(), false),
        again_at_(args.hosts.size(), kForever),
        last_words_(args.hosts.size()) {}
  StartedAgents Run();

 private:
  using Ranks = std::unique_ptr<RemoteRanks>;

  void StartShells();
  absl::StatusOr<Ranks> StartShell(size_t host);
  // Of a host whose shell has ended before its agent spoke: whether it will be tried again.
  bool MayComeUp(size_t host);
  void TryAgain(Nanos now);
  // Waits for news until `deadline`.
  void PollOnce(Nanos deadline);
  void OnNews(size_t host);
  void OnHello(size_t host);
  void GiveOrder(size_t host);
  void Fail(size_t host, const std::string& why, int exit_code = kCannotStart);
  bool Ready(size_t host) const { return hosts_[host]->ready().has_value(); }
  bool Settled() const;
  void BlameTheSilent();
  void BeginAll();
  void EndAll();
  void OnSignals();

  const AgentsArgs& args_;
  Output* const output_;
  std::vector<Ranks> hosts_;
  std::vector<bool> failed_;
  std::vector<Nanos> again_at_;
  std::vector<std::string> last_words_;  // of shells that ended before
  std::set<size_t> ordered_;
  std::map<std::string, size_t> machines_;  // by their identity
  StartedAgents result_;
  int signal_ = 0;
};

StartedAgents AgentsStart::Run() {
  const Nanos deadline = DeadlineAfter(
      MonotonicNow(), static_cast<Nanos>(args_.timeout_seconds * static_cast<double>(kSecond)));
  StartShells();
  std::optional<Nanos> others;
  while (hosts_.size() == failed_.size() && !Settled() && signal_ == 0) {
    const Nanos now = MonotonicNow();
    if (!result_.failures.empty() && !others) others = DeadlineAfter(now, kOthersPatience);
    if (now >= deadline) BlameTheSilent();
    if (now >= std::min(deadline, others.value_or(kForever))) break;
    PollOnce(std::min({deadline, others.value_or(kForever),
                       *std::min_element(again_at_.begin(), again_at_.end())}));
    TryAgain(MonotonicNow());
  }
  if (signal_ != 0) result_.exit_code = 128 + signal_;
  if (result_.exit_code == 0) {
    BeginAll();
    result_.hosts = std::move(hosts_);
  } else {
    EndAll();
  }
  return std::move(result_);
}

void AgentsStart::StartShells() {
  for (size_t i = 0; i < args_.hosts.size(); ++i) {
    absl::StatusOr<Ranks> ranks = StartShell(i);
    if (!ranks.ok()) {
      Fail(i, std::string(ranks.status().message()));
      return;
    }
    hosts_.push_back(*std::move(ranks));
  }
}

absl::StatusOr<AgentsStart::Ranks> AgentsStart::StartShell(size_t i) {
  const JobHost& host = args_.hosts[i];
  // SLURM signals the steps of a job and not its script: here too the ranks have to be in one.
  const bool directly = host.is_here && args_.starter.kind != Starter::Kind::kSrun;
  std::vector<std::string> words = directly ? std::vector<std::string>{args_.agent, "--agent"}
                                            : StarterWords(args_.starter, host.name, args_.agent);
  return RemoteRanks::Start(host, std::move(words), args_.agent, output_);
}

bool AgentsStart::MayComeUp(size_t host) {
  using Kind = Starter::Kind;
  const bool by_shell = args_.starter.kind == Kind::kSsh || args_.starter.kind == Kind::kShell;
  if (!by_shell || args_.hosts[host].is_here || hosts_[host]->hello().has_value()) return false;
  const std::string why = hosts_[host]->WhyGone();
  if (std::none_of(std::begin(kMayComeUp), std::end(kMayComeUp),
                   [&](absl::string_view text) { return absl::StrContains(why, text); })) {
    return false;
  }
  if (last_words_[host].empty()) {
    output_->SayNow(absl::StrCat("ruedarun: host ", args_.hosts[host].name, ": ", why,
                                 "; trying again for ", args_.timeout_seconds,
                                 " s (--start-timeout)\n"));
  }
  last_words_[host] = why;
  again_at_[host] = MonotonicNow() + kAgainAfter;
  return true;
}

void AgentsStart::TryAgain(Nanos now) {
  for (size_t i = 0; i < again_at_.size(); ++i) {
    if (now < again_at_[i]) continue;
    again_at_[i] = kForever;
    absl::StatusOr<Ranks> ranks = StartShell(i);
    if (ranks.ok()) {
      hosts_[i] = *std::move(ranks);
    } else {
      Fail(i, std::string(ranks.status().message()));
    }
  }
}

void AgentsStart::PollOnce(Nanos deadline) {
  std::vector<pollfd> waits = {{args_.signal_fd, POLLIN, 0}};
  for (const Ranks& host : hosts_) host->AddWaits(&waits);
  if (poll(waits.data(), waits.size(), PollTimeoutMs(deadline - MonotonicNow())) < 0) return;
  if (waits[0].revents != 0) OnSignals();
  for (size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i]->Advance(waits);
    if (!failed_[i]) OnNews(i);
  }
}

void AgentsStart::OnSignals() {
  while (const int signal = NextSignal(args_.signal_fd)) {
    if (EndsJob(signal)) signal_ = signal;
  }
}

void AgentsStart::OnNews(size_t host) {
  const RemoteRanks& ranks = *hosts_[host];
  if (ranks.refusal().has_value()) {
    Fail(host, ranks.refusal()->why(), ranks.refusal()->exit_code());
  } else if (ranks.gone()) {
    if (again_at_[host] == kForever && !MayComeUp(host)) Fail(host, ranks.WhyGone());
  } else if (ranks.hello().has_value() && ordered_.insert(host).second) {
    OnHello(host);
  }
}

void AgentsStart::OnHello(size_t host) {
  const launch::Hello& hello = *hosts_[host]->hello();
  if (hello.version() != VersionText()) {
    Fail(host, absl::StrCat(args_.agent, " there is ", absl::StripSuffix(hello.version(), "\n"),
                            ", and here ", absl::StripSuffix(VersionText(), "\n"),
                            ": all hosts need the same"));
    return;
  }
  const auto [other, fresh] = machines_.emplace(hello.host_id(), host);
  if (!fresh) {
    Fail(host, absl::StrCat("it is the same machine as ", args_.hosts[other->second].name,
                            "; name it once, with all its slots"));
    return;
  }
  GiveOrder(host);
}

void AgentsStart::GiveOrder(size_t host) {
  launch::ToAgent message;
  launch::Order& order = *message.mutable_order();
  order = args_.order;
  const HostShare& share = args_.hosts[host].share;
  order.set_size(share.size);
  order.set_first_rank(share.first);
  order.set_ranks(share.ranks);
  order.set_host(share.host);
  order.set_hosts(share.hosts);
  order.set_host_name(args_.hosts[host].name);
  if (args_.hosts[host].is_here) order.clear_lifeline();
  if (host == 0) {
    order.set_network_interface(args_.network_interface);
    order.set_other_host(args_.hosts.back().name);
  }
  hosts_[host]->Send(message);
}

void AgentsStart::Fail(size_t host, const std::string& why, int exit_code) {
  failed_[host] = true;
  result_.failures.push_back(absl::StrCat("host ", args_.hosts[host].name, ": ", why));
  if (result_.exit_code == 0) result_.exit_code = exit_code == 0 ? kCannotStart : exit_code;
}

bool AgentsStart::Settled() const {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (!failed_[i] && !Ready(i)) return false;
  }
  return true;
}

void AgentsStart::BlameTheSilent() {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (failed_[i] || Ready(i)) continue;
    std::string last = hosts_[i]->LastNoise();
    if (last.empty()) last = last_words_[i];
    Fail(i, absl::StrCat("not ready after ", args_.timeout_seconds, " s (--start-timeout)",
                         last.empty() ? "" : ": ", last));
  }
}

void AgentsStart::BeginAll() {
  launch::ToAgent message;
  *message.mutable_start() = hosts_[0]->ready()->meeting();
  for (const Ranks& host : hosts_) {
    host->Send(message);
    host->SetRunning();
  }
}

// The agents have no ranks yet, and end when nobody speaks to them; a shell that does not is
// killed.
void AgentsStart::EndAll() {
  for (const Ranks& host : hosts_) host->HangUp();
  const Nanos deadline = MonotonicNow() + kEndPatience;
  std::fill(failed_.begin(), failed_.end(), true);  // nothing they say now is news
  const auto gone = [](const Ranks& host) { return host->gone(); };
  while (!std::all_of(hosts_.begin(), hosts_.end(), gone) && MonotonicNow() < deadline) {
    PollOnce(deadline);
  }
  hosts_.clear();
}

}  // namespace

StartedAgents StartAgents(const AgentsArgs& args, Output* output) {
  return AgentsStart(args, output).Run();
}

}  // namespace rueda
