#include "controller/launcher/host/kept_memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace rueda {
namespace {

constexpr size_t kKeptNameBytesMax = 1'024;
constexpr size_t kKeptNamesMax = 1'024;
// Ranks go back to the last commit, or to the one before.
constexpr size_t kKeptVersions = 3;

bool IsSameVersion(const wire::KeptPart& a, const wire::KeptPart& b) {
  return a.number() == b.number() && a.membership() == b.membership();
}

}  // namespace

bool KeptMemory::Keep(Slot slot, const wire::KeptPart& part, UniqueFd memory) {
  struct stat info;
  if (part.name().size() > kKeptNameBytesMax || fstat(memory.get(), &info) != 0) return false;
  if (fcntl(memory.get(), F_GET_SEALS) < 0) return false;  // it is no shared memory
  const bool is_first = !living_.contains(slot);
  Of& of = living_[slot];
  if (of.parts.size() >= kKeptNamesMax && !of.parts.contains(part.name())) return false;
  const Inode inode = {info.st_dev, info.st_ino};
  of.memories.try_emplace(inode, std::move(memory));
  std::deque<Part>& parts = of.parts[part.name()];
  // All have taken over what there was before this membership when they commit again in it.
  if (!parts.empty()) {
    const uint64_t settled = parts.back().part.record();
    std::erase_if(gone_, [&](const Of& each) { return each.record < settled; });
  }
  std::erase_if(parts, [&](const Part& each) { return IsSameVersion(each.part, part); });
  parts.push_back({part, inode});
  if (parts.size() > kKeptVersions) parts.pop_front();
  of.record = std::max(of.record, part.record());
  std::erase_if(of.memories, [&](const auto& each) {
    return std::none_of(of.parts.begin(), of.parts.end(), [&](const auto& named) {
      return std::any_of(named.second.begin(), named.second.end(),
                         [&](const Part& one) { return one.memory == each.first; });
    });
  });
  return is_first;
}

void KeptMemory::OnEnded(Slot slot, bool well) {
  auto of = living_.extract(slot);
  if (!of.empty() && !well) gone_.push_back(std::move(of.mapped()));
}

std::optional<KeptMemory::Found> KeptMemory::Find(const wire::KeptPart& wanted) const {
  for (const Of& of : gone_) {
    const auto named = of.parts.find(wanted.name());
    if (named == of.parts.end()) continue;
    for (const Part& each : named->second) {
      if (!IsSameVersion(each.part, wanted) || each.part.rank() != wanted.rank()) continue;
      return Found{each.part, of.memories.at(each.memory).get()};
    }
  }
  return std::nullopt;
}

}  // namespace rueda
