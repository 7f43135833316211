// PURE
#include "controller/launcher/decide/placement.h"

#include <algorithm>

#include "core/base/check.h"

namespace rueda {

Placement::Changes Placement::SetHosts(const std::vector<HostSlots>& hosts) {
  std::vector<int> before(hosts_.size());
  for (size_t i = 0; i < hosts_.size(); ++i) before[i] = std::exchange(hosts_[i].slots, 0);
  before.resize(hosts_.size() + hosts.size(), 0);
  order_.clear();
  for (const HostSlots& each : hosts) {
    int number = NumberOf(each.name);
    if (number < 0) {
      Host fresh;
      fresh.name = each.name;
      fresh.first = hosts_.empty() ? 0 : hosts_.back().first + hosts_.back().room;
      fresh.room = std::max(each.slots, options_.room_min);
      fresh.places.resize(static_cast<size_t>(fresh.room));
      hosts_.push_back(std::move(fresh));
      number = static_cast<int>(hosts_.size()) - 1;
    }
    Host& host = hosts_[static_cast<size_t>(number)];
    host.slots = std::min(each.slots, host.room);
    order_.push_back(number);
  }
  Changes changes;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const Host& host = hosts_[i];
    for (int local = 0; local < host.room; ++local) {
      const bool was = local < before[i], is = local < host.slots;
      if (was == is || !host.places[static_cast<size_t>(local)].running) continue;
      (is ? changes.returned : changes.withdrawn).push_back(host.first + local);
    }
  }
  return changes;
}

int Placement::NumberOf(const std::string& name) const {
  const auto host = std::find_if(hosts_.begin(), hosts_.end(),
                                 [&](const Host& known) { return known.name == name; });
  return host == hosts_.end() ? -1 : static_cast<int>(host - hosts_.begin());
}

int Placement::HostOf(Slot slot) const {
  for (size_t i = 0; i < hosts_.size(); ++i) {
    if (slot >= hosts_[i].first && slot < hosts_[i].first + hosts_[i].room) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

Placement::Place& Placement::PlaceOf(Slot slot) {
  const int number = HostOf(slot);
  RUEDA_CHECK(number >= 0);
  Host& host = hosts_[static_cast<size_t>(number)];
  return host.places[static_cast<size_t>(slot - host.first)];
}

Nanos Placement::CooldownAfter(int strikes) const {
  Nanos cooldown = options_.cooldown_min;
  for (int i = 1; i < strikes && cooldown < options_.cooldown_max; ++i) cooldown *= 2;
  return std::min(cooldown, options_.cooldown_max);
}

bool Placement::IsWanted(int number, Nanos now) const {
  const Host& host = hosts_[static_cast<size_t>(number)];
  return host.slots > 0 && now >= host.again_at;
}

int Placement::SlotsThere() const {
  int slots = 0;
  for (const Host& host : hosts_) slots += host.slots;
  return slots;
}

void Placement::OnHostDown(int number, bool failed, Nanos now) {
  Host& host = hosts_[static_cast<size_t>(number)];
  host.up = false;
  if (!failed) return;
  host.again_at = std::max(host.again_at, DeadlineAfter(now, CooldownAfter(++host.strikes)));
}

// Processes but for those that are to leave: others come before they go.
int Placement::Staying() const {
  int staying = 0;
  for (const Host& host : hosts_) {
    for (int local = 0; local < host.slots; ++local) {
      staying += host.places[static_cast<size_t>(local)].running ? 1 : 0;
    }
  }
  return staying;
}

// Of processes.
bool Placement::IsEmpty(int number) const {
  const std::vector<Place>& places = hosts_[static_cast<size_t>(number)].places;
  return std::none_of(places.begin(), places.end(), [](const Place& each) { return each.running; });
}

std::optional<Slot> Placement::Next(Nanos now, const std::set<int>& awaited) const {
  const int room = options_.processes_max - Staying();
  const int reserved = static_cast<int>(
      std::count_if(awaited.begin(), awaited.end(), [&](int number) { return IsEmpty(number); }));
  for (const int number : order_) {
    const Host& host = hosts_[static_cast<size_t>(number)];
    if (!host.up || now < host.again_at) continue;
    const bool is_awaited = awaited.contains(number) && IsEmpty(number);
    if (room <= (is_awaited ? 0 : reserved)) continue;
    for (int local = 0; local < host.slots; ++local) {
      const Place& place = host.places[static_cast<size_t>(local)];
      if (!place.running && now >= place.again_at) return host.first + local;
    }
  }
  return std::nullopt;
}

void Placement::OnStarted(Slot slot) {
  PlaceOf(slot).running = true;
  ++running_;
}

void Placement::OnEnded(Slot slot, bool failed, Nanos now) {
  Place& place = PlaceOf(slot);
  if (!std::exchange(place.running, false)) return;
  --running_;
  if (!failed) return;
  place.again_at = DeadlineAfter(now, CooldownAfter(++place.strikes));
  if (options_.blame_hosts) hosts_[static_cast<size_t>(HostOf(slot))].again_at = kForever;
}

Nanos Placement::deadline(Nanos now) const {
  Nanos next = kForever;
  const auto consider = [&](Nanos at) {
    if (at > now) next = std::min(next, at);
  };
  for (const int number : order_) {
    const Host& host = hosts_[static_cast<size_t>(number)];
    consider(host.again_at);
    for (int local = 0; local < host.slots; ++local) {
      const Place& place = host.places[static_cast<size_t>(local)];
      if (!place.running) consider(place.again_at);
    }
  }
  return next;
}

}  // namespace rueda
