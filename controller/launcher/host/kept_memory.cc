#include "controller/launcher/host/kept_memory.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

#include "core/base/limits.h"

namespace rueda {
namespace {

constexpr size_t kKeptNamesMax = 1'024;
// Of a name. More are kept only while syncs fail again and again, and so are more processes that
// are gone.
constexpr size_t kKeptVersionsMax = 16;
constexpr size_t kGoneMax = 4;  // of a slot

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
  std::erase_if(parts, [&](const Part& each) { return IsSameVersion(each.part, part); });
  parts.push_back({part, inode});
  if (parts.size() > kKeptVersionsMax) parts.pop_front();
  Forget(part.name(), part.oldest(), &of);
  for (auto& [other, each] : gone_) Forget(part.name(), part.oldest(), &each);
  std::erase_if(gone_, [](const auto& each) { return each.second.parts.empty(); });
  return is_first;
}

void KeptMemory::Forget(const std::string& name, uint64_t oldest, Of* of) {
  const auto named = of->parts.find(name);
  if (named == of->parts.end()) return;
  std::erase_if(named->second, [&](const Part& each) { return each.part.number() < oldest; });
  if (named->second.empty()) of->parts.erase(named);
  std::erase_if(of->memories, [&](const auto& each) {
    return std::none_of(of->parts.begin(), of->parts.end(), [&](const auto& other) {
      return std::any_of(other.second.begin(), other.second.end(),
                         [&](const Part& one) { return one.memory == each.first; });
    });
  });
}

void KeptMemory::OnEnded(Slot slot) {
  auto of = living_.extract(slot);
  if (of.empty()) return;
  gone_.emplace(slot, std::move(of.mapped()));
  if (gone_.count(slot) > kGoneMax) gone_.erase(gone_.lower_bound(slot));
}

std::optional<KeptMemory::Found> KeptMemory::Find(const wire::KeptPart& wanted) const {
  for (const auto& [slot, of] : gone_) {
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
