// PURE
#include "controller/membership/process_sets.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/check.h"
#include "core/base/limits.h"

namespace rueda {

int ProcessSet::Search(Rank rank) const {
  const auto it = std::lower_bound(ranks.begin(), ranks.end(), rank);
  return it != ranks.end() && *it == rank ? static_cast<int>(it - ranks.begin()) : -1;
}

namespace {

// A world is the same in all tables, and large in a large job: those of one thread share the last.
std::shared_ptr<const ProcessSet> World(int size) {
  thread_local std::weak_ptr<const ProcessSet> last;
  if (auto world = last.lock(); world != nullptr && world->size() == size) return world;
  auto world = std::make_shared<ProcessSet>();
  world->ranks.resize(size);
  std::iota(world->ranks.begin(), world->ranks.end(), 0);
  last = world;
  return world;
}

}  // namespace

ProcessSetTable::ProcessSetTable(int world_size, absl::Span<const std::vector<Rank>> more) {
  sets_.push_back(World(world_size));
  generations_.push_back(0);
  for (const std::vector<Rank>& ranks : more) {
    const absl::StatusOr<SetId> id = Add(ranks);
    RUEDA_CHECK(id.ok()) << id.status().message();
  }
}

const ProcessSet* ProcessSetTable::Find(absl::Span<const Rank> ranks) const {
  for (const auto& set : sets_) {
    if (set != nullptr && absl::MakeConstSpan(set->ranks) == ranks) return set.get();
  }
  return nullptr;
}

absl::Status ProcessSetTable::Check(absl::Span<const Rank> ranks) const {
  const std::string text = absl::StrCat("process set {", absl::StrJoin(ranks, ", "), "}");
  if (ranks.empty()) return absl::InvalidArgumentError("a process set needs at least one rank");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          text, ": ", ranks[i], " is not a rank; the world has ranks 0 to ", world_size() - 1));
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat(text, ": the ranks must be ascending and each named once"));
    }
  }
  if (const ProcessSet* set = Find(ranks)) {
    return absl::AlreadyExistsError(absl::StrCat(text, " exists already, as set ", set->id));
  }
  if (end() == kProcessSetsMax && std::count(sets_.begin(), sets_.end(), nullptr) == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(text, ": there are ", kProcessSetsMax, " process sets already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SetId> ProcessSetTable::Add(absl::Span<const Rank> ranks) {
  RUEDA_RETURN_IF_ERROR(Check(ranks));
  const auto free = std::find(sets_.begin(), sets_.end(), nullptr);
  const SetId id = static_cast<SetId>(free - sets_.begin());
  if (free == sets_.end()) {
    sets_.emplace_back();
    generations_.push_back(0);
  }
  auto set = std::make_shared<ProcessSet>();
  set->id = id;
  set->generation = generations_[id]++;
  set->ranks.assign(ranks.begin(), ranks.end());
  sets_[id] = std::move(set);
  return id;
}

absl::Status ProcessSetTable::Remove(SetId id) {
  if (id == kWorldSet) {
    return absl::InvalidArgumentError("process set 0 is the world; it can't be removed");
  }
  if (Find(id) == nullptr) {
    return absl::NotFoundError(absl::StrCat("there is no process set ", id));
  }
  sets_[id].reset();
  return absl::OkStatus();
}

namespace {

// "3" or "2-5", appended to `ranks`.
absl::Status ParseRange(absl::string_view text, int world_size, std::vector<Rank>* ranks) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  Rank first = 0, last = 0;
  if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last) ||
      first < 0 || last < first || last >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is neither a rank from 0 to ",
                                                   world_size - 1, " nor a range of them"));
  }
  // Once is all that a rank can be named; no text makes a longer list.
  if (static_cast<int>(ranks->size()) + (last - first) >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' names a rank a second time"));
  }
  for (Rank rank = first; rank <= last; ++rank) ranks->push_back(rank);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::vector<Rank>>> ParseProcessSets(absl::string_view text,
                                                                int world_size) {
  std::vector<std::vector<Rank>> sets;
  if (text.empty()) return sets;
  ProcessSetTable table(world_size);
  for (const absl::string_view each : absl::StrSplit(text, ';')) {
    std::vector<Rank> ranks;
    absl::Status status;
    for (const absl::string_view range : absl::StrSplit(each, ',')) {
      status.Update(ParseRange(range, world_size, &ranks));
    }
    std::sort(ranks.begin(), ranks.end());
    if (status.ok()) status = table.Add(ranks).status();
    if (!status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("process_sets=", text, ": ", status.message()));
    }
    sets.push_back(std::move(ranks));
  }
  return sets;
}

}  // namespace rueda
