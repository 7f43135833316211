// PURE
#include "controller/membership/authority.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/seconds.h"

namespace rueda {

namespace {

std::string ProcessesText(int64_t count) {
  return absl::StrCat(count, count == 1 ? " process" : " processes");
}

}  // namespace

bool Authority::IsMember(Slot slot) const {
  const auto it = processes_.find(slot);
  return it != processes_.end() && it->second.member;
}

void Authority::OnStarted(Slot slot, int host, Nanos now) {
  processes_[slot] = Process();
  processes_[slot].host = host;
  if (record_.number == 0 && shortage_since_ == kForever) shortage_since_ = now;
}

void Authority::OnEnded(Slot slot, bool well, Nanos now, Actions* out) {
  const auto it = processes_.find(slot);
  if (it == processes_.end() || over_) return;
  const bool was_member = it->second.member;
  if (!well) Lose(&it->second, now);
  processes_.erase(it);
  finishing_ |= well && (was_member || record_.number == 0);
  lost_some_ |= was_member;
  if (record_.number == 0 && processes_.empty()) {
    if (!well) return End("all processes have failed before they met", out);
    over_ = true;
    deadline_ = kForever;
    return;
  }
  if (was_member && EndWithoutMembers(out)) return;
  TryCommit(now, out);
}

bool Authority::EndWithoutMembers(Actions* out) {
  const bool has_members = std::any_of(processes_.begin(), processes_.end(), [](const auto& each) {
    const Process& process = each.second;
    return process.member && !process.dies && !process.removed && !process.stateless;
  });
  if (record_.number == 0 || has_members) return false;
  if (!finishing_) {
    const bool is_one_left =
        std::any_of(processes_.begin(), processes_.end(),
                    [](const auto& each) { return each.second.member && each.second.stateless; });
    End(absl::StrCat("all ranks of membership ", record_.number,
                     is_one_left ? " that had the state" : "", " have failed"),
        out);
    return true;
  }
  over_ = true;  // the rest has nothing to do any more
  deadline_ = kForever;
  for (const auto& [other, process] : processes_) out->push_back({ActionKind::kDismiss, other});
  return true;
}

void Authority::OnDying(Slot slot, Nanos now, Actions* out) {
  const auto it = processes_.find(slot);
  if (it == processes_.end() || over_) return;
  it->second.dies = true;
  Lose(&it->second, now);
  it->second.asked = false;
  lost_some_ |= it->second.member;
  if (it->second.member && EndWithoutMembers(out)) return;
  TryCommit(now, out);
}

void Authority::OnAsk(Slot slot, const Ask& ask, Nanos now, Actions* out) {
  const auto it = processes_.find(slot);
  if (it == processes_.end()) return;
  Process& process = it->second;
  if (over_ || process.removed || (process.withdrawn && !process.member)) {
    out->push_back({ActionKind::kDismiss, slot});
    return;
  }
  if (process.member && ask.membership < record_.number) {
    out->push_back({ActionKind::kRepeat, slot});
    return;
  }
  process.asked = true;
  process.ask = ask;
  process.stateless = process.member && IsNewIn(slot) && ask.commits < commits_;
  if (record_.number == 0 || process.member) {
    if (!regrouping()) asked_since_ = now;
    asked_last_ = now;
  } else if (!regrouping()) {
    TellOfChange(out);
  }
  TryCommit(now, out);
}

void Authority::OnWithdrawn(Slot slot, Nanos now, Actions* out) {
  const auto it = processes_.find(slot);
  if (it == processes_.end() || over_) return;
  it->second.withdrawn = true;
  if (!it->second.member && it->second.asked) {
    out->push_back({ActionKind::kDismiss, slot});
    it->second.asked = false;
  }
  if (!regrouping()) TellOfChange(out);
  TryCommit(now, out);
}

void Authority::OnReturned(Slot slot, Nanos now, Actions* out) {
  const auto it = processes_.find(slot);
  if (it == processes_.end() || over_ || !it->second.member) return;
  it->second.withdrawn = false;
  TryCommit(now, out);
}

void Authority::OnKeeps(Slot slot, Actions* out) {
  const auto it = processes_.find(slot);
  if (it == processes_.end() || over_ || !it->second.member) return;
  it->second.keeps = true;
  kept_until_.erase(it->second.host);
  TellOfKeeping(out);
}

void Authority::OnHostGone(int host, Nanos now, Actions* out) {
  bool is_empty = true;
  for (auto& [slot, process] : processes_) {
    if (process.host != host) continue;
    process.keeps = false;
    is_empty = false;  // what becomes of it follows
  }
  if (kept_until_.erase(host) == 0) return;
  TellOfKeeping(out);
  if (is_empty) TryCommit(now, out);  // its place is another's
}

void Authority::OnTime(Nanos now, Actions* out) {
  const bool gives_up =
      std::erase_if(kept_until_, [&](const auto& each) { return now >= each.second; }) > 0;
  if (gives_up) TellOfKeeping(out);
  if (gives_up || now >= deadline_) TryCommit(now, out);
}

Nanos Authority::deadline() const {
  Nanos next = deadline_;
  if (over_) return next;
  for (const auto& [host, until] : kept_until_) next = std::min(next, until);
  return next;
}

// For as long as there may be too few.
void Authority::Lose(Process* process, Nanos now) {
  if (!std::exchange(process->keeps, false)) return;
  kept_until_[process->host] = DeadlineAfter(now, options_.shortage_timeout);
}

std::set<int> Authority::AwaitedBy(const std::vector<Slot>& members) const {
  std::set<int> hosts;
  if (kept_until_.empty() || finishing_) return hosts;  // then nobody is started any more
  for (const auto& [host, until] : kept_until_) hosts.insert(host);
  for (const Slot slot : members) {
    const auto it = processes_.find(slot);
    const bool is_there = it != processes_.end() && !it->second.dies && !it->second.removed;
    if (is_there) hosts.erase(it->second.host);
  }
  return hosts;
}

void Authority::TellOfKeeping(Actions* out) {
  if (over_) return;
  if (record_.keeping > 0 && Awaited().empty()) {
    record_.keeping = 0;
    out->push_back({ActionKind::kNothingKept});
  }
  if (!regrouping()) TellOfChange(out);
}

std::vector<Slot> Authority::Newcomers(const std::vector<Slot>& members) const {
  std::set<int> awaited = AwaitedBy(members);
  int room = options_.max - static_cast<int>(members.size());
  std::vector<Slot> newcomers;
  for (const auto& [slot, process] : processes_) {
    if (!Waits(process)) continue;
    const bool is_awaited = awaited.contains(process.host);
    if (room <= (is_awaited ? 0 : static_cast<int>(awaited.size()))) continue;
    newcomers.push_back(slot);
    awaited.erase(process.host);
    --room;
  }
  return newcomers;
}

// Whether it is a newcomer of record_.
bool Authority::IsNewIn(Slot slot) const {
  return std::find(record_.slots.begin() + record_.survivors, record_.slots.end(), slot) !=
         record_.slots.end();
}

std::vector<Slot> Authority::Missing() const {
  std::vector<Slot> missing;
  for (const auto& [slot, process] : processes_) {
    if (MustAsk(process) && !process.asked) missing.push_back(slot);
  }
  return missing;
}

bool Authority::IsBlamed(Slot slot) const {
  return std::any_of(processes_.begin(), processes_.end(), [&](const auto& each) {
    return each.second.asked && each.second.ask.blames == slot;
  });
}

bool Authority::AreOnBlamedHosts(const std::vector<Slot>& missing) const {
  const auto is_blamed = [&](int host) {
    const bool has_asked = std::any_of(processes_.begin(), processes_.end(), [&](const auto& each) {
      return each.second.host == host && each.second.asked;
    });
    return !has_asked && std::any_of(missing.begin(), missing.end(), [&](Slot slot) {
      return processes_.at(slot).host == host && IsBlamed(slot);
    });
  };
  return std::all_of(missing.begin(), missing.end(),
                     [&](Slot slot) { return is_blamed(processes_.at(slot).host); });
}

void Authority::Remove(const std::vector<Slot>& slots, const std::string& why, Nanos now,
                       Actions* out) {
  for (const Slot slot : slots) {
    processes_[slot].removed = true;
    Lose(&processes_[slot], now);
    out->push_back({ActionKind::kRemove, slot, why});
  }
  lost_some_ = true;
  removed_at_ = now;
}

uint64_t Authority::NewestCommits() const {
  uint64_t newest = 0;
  for (const auto& [slot, process] : processes_) {
    if (process.member && process.asked) newest = std::max(newest, process.ask.commits);
  }
  return newest;
}

bool Authority::IsBlamedInVain() const {
  return std::any_of(processes_.begin(), processes_.end(), [&](const auto& each) {
    return each.second.member && each.second.asked && IsBlamed(each.first);
  });
}

// The last one that is blamed, or, if that is the first member alone, the last one that blames it;
// and its whole host, unless that is the first member's, too.
std::vector<Slot> Authority::Unreachable() const {
  std::vector<Slot> members = Members();
  const Slot first = members.front();
  Slot last = kNoSlot, last_accuser = kNoSlot;
  for (const Slot slot : members) {
    if (slot == first) continue;
    if (IsBlamed(slot)) last = slot;
    if (processes_.at(slot).ask.blames == first) last_accuser = slot;
  }
  if (last == kNoSlot) last = last_accuser;
  if (last == kNoSlot) return {};
  const int host = processes_.at(last).host;
  if (host == processes_.at(first).host) return {last};
  std::erase_if(members, [&](Slot slot) { return processes_.at(slot).host != host; });
  return members;
}

// Whoever comes gets the state from one that was there: the last member stays until another one has
// it.
std::vector<Slot> Authority::Leaving() const {
  std::vector<Slot> leaving;
  if (!Awaited().empty()) return leaving;
  bool some_stay = false;
  for (const Slot slot : record_.slots) {
    const auto it = processes_.find(slot);
    if (it == processes_.end() || !it->second.member) continue;
    some_stay |= !it->second.withdrawn;
    if (it->second.withdrawn) leaving.push_back(slot);
  }
  if (some_stay || leaving.empty()) return leaving;
  const auto waiting = std::count_if(processes_.begin(), processes_.end(),
                                     [](const auto& each) { return Waits(each.second); });
  if (waiting == 0 || waiting + 1 < options_.min) return {};
  const auto last = std::find_if(leaving.begin(), leaving.end(),
                                 [&](Slot slot) { return !processes_.at(slot).told_to_leave; });
  if (last != leaving.end()) leaving.erase(last);
  return leaving;
}

// What waits for the members' next commit, and has not been told.
void Authority::TellOfChange(Actions* out) {
  if (record_.number == 0 || over_) return;
  bool added = told_added_, is_news = false;
  const std::vector<Slot> leaving = Leaving();
  for (const Slot slot : leaving) {
    is_news |= !std::exchange(processes_.at(slot).told_to_leave, true);
  }
  added |= !Newcomers(Members()).empty();
  is_news |= added != std::exchange(told_added_, added);
  if (is_news) out->push_back({ActionKind::kTellOfChange, kNoSlot, "", added, leaving});
}

void Authority::TryCommit(Nanos now, Actions* out) {
  deadline_ = kForever;
  if (over_) return;
  if (!regrouping()) {  // processes that never ask are waited for as long as for more of them
    if (record_.number > 0 || shortage_since_ == kForever) return;
    deadline_ = DeadlineAfter(shortage_since_, options_.shortage_timeout);
    if (now < deadline_) return;
    return End(
        absl::StrCat("no process has come to init within ", Seconds(options_.shortage_timeout)),
        out);
  }
  const bool first = record_.number == 0;
  if (const std::vector<Slot> missing = Missing(); !missing.empty()) {
    if (first) {
      deadline_ = DeadlineAfter(shortage_since_, options_.shortage_timeout);
    } else {
      deadline_ = DeadlineAfter(asked_since_, options_.regroup_timeout);
      const bool are_blamed =
          std::all_of(missing.begin(), missing.end(), [&](Slot slot) { return IsBlamed(slot); });
      if (are_blamed || AreOnBlamedHosts(missing)) {
        deadline_ = std::min(
            deadline_, DeadlineAfter(asked_last_, are_blamed ? kBlamedPatience : kHostPatience));
      }
    }
    if (now < deadline_) return;
    if (!first) {
      Remove(missing,
             absl::StrCat("the others have waited ", Seconds(now - asked_since_),
                          " for it to regroup"),
             now, out);
    }
  }
  const bool ending = std::any_of(processes_.begin(), processes_.end(), [](const auto& each) {
    return each.second.removed && each.second.member && !each.second.dies;
  });
  if (ending) {
    deadline_ = DeadlineAfter(removed_at_, kRemovePatience);
    if (now < deadline_) return;
  }
  if (EndWithoutMembers(out)) return;
  const std::vector<Slot> survivors = Survivors();
  const int ready = static_cast<int>(survivors.size() + Newcomers(survivors).size());
  if (ready >= options_.min) {
    if (lost_some_ || NewestCommits() > commits_) in_vain_ = 0;
    if (!lost_some_ && IsBlamedInVain() && ++in_vain_ == kInVainMax) {
      Remove(Unreachable(), absl::StrCat("in ", kInVainMax, " memberships others did not reach it"),
             now, out);
      return TryCommit(now, out);
    }
    return Commit(out);
  }
  if (finishing_) {  // nobody is started any more
    const auto left = std::count_if(processes_.begin(), processes_.end(), [](const auto& each) {
      return !each.second.dies && !each.second.removed && !each.second.withdrawn;
    });
    if (left < options_.min) {
      return End(absl::StrCat("a rank has ended with status 0, and of the others there ",
                              left == 1 ? "is " : "are ", ProcessesText(left), ", fewer than the ",
                              options_.min, " of --min-np"),
                 out);
    }
  }
  if (shortage_since_ == kForever) shortage_since_ = now;
  deadline_ = DeadlineAfter(shortage_since_, options_.shortage_timeout);
  if (now < deadline_) return;
  End(absl::StrCat("for ", Seconds(options_.shortage_timeout), " there ",
                   ready == 1 ? "was " : "were ", ProcessesText(ready), ", fewer than the ",
                   options_.min, " of --min-np"),
      out);
}

std::vector<Slot> Authority::Members() const {
  std::vector<Slot> members = record_.slots;
  std::erase_if(members, [&](Slot slot) { return !IsMember(slot); });
  return members;
}

std::vector<Slot> Authority::Survivors() const {
  std::vector<Slot> survivors = Members();
  std::erase_if(survivors, [&](Slot slot) { return !Stays(processes_.at(slot)); });
  return survivors;
}

void Authority::Commit(Actions* out) {
  if (options_.resets_max >= 0 && record_.number > static_cast<uint64_t>(options_.resets_max)) {
    return End(absl::StrCat("more than ", options_.resets_max,
                            options_.resets_max == 1 ? " reset" : " resets", " (--reset-limit)"),
               out);
  }
  MembershipRecord next;
  next.number = record_.number + 1;
  next.slots = Survivors();
  next.survivors = static_cast<int>(next.slots.size());
  const std::vector<Slot> newcomers = Newcomers(next.slots);
  next.slots.insert(next.slots.end(), newcomers.begin(), newcomers.end());
  next.keeping = static_cast<int>(AwaitedBy(next.slots).size());
  for (int rank = 1; rank < next.survivors; ++rank) {
    const auto commits = [&](int of) { return processes_[next.slots[of]].ask.commits; };
    if (commits(rank) > commits(next.source)) next.source = rank;
  }
  commits_ = NewestCommits();
  lost_some_ = false;
  record_ = std::move(next);
  for (auto& [slot, process] : processes_) {
    const bool is_in =
        std::find(record_.slots.begin(), record_.slots.end(), slot) != record_.slots.end();
    // Who is withdrawn leaves; who came when there was no room waits on.
    if (!is_in && process.asked && process.withdrawn) out->push_back({ActionKind::kDismiss, slot});
    if (is_in || process.withdrawn) process.asked = false;
    process.stateless = false;
    process.member = is_in;
    process.told_to_leave = false;
  }
  asked_since_ = shortage_since_ = kForever;
  told_added_ = false;
  deadline_ = kForever;
  out->push_back({ActionKind::kCommit});
  // Withdrawn since, or come since without room: due at the next commit.
  TellOfChange(out);
}

void Authority::End(std::string why, Actions* out) {
  over_ = true;
  deadline_ = kForever;
  out->push_back({ActionKind::kEndJob, kNoSlot, std::move(why)});
}

}  // namespace rueda
