#include "ops/compression/state.h"

#include <cstring>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// Version, then for each tensor its name and its three vectors, each with its length before it.
constexpr uint64_t kFormat = 1;

void PutNumber(uint64_t number, std::string* to) {
  to->append(reinterpret_cast<const char*>(&number), sizeof number);
}

bool TakeNumber(absl::string_view* from, uint64_t* number) {
  if (from->size() < sizeof *number) return false;
  memcpy(number, from->data(), sizeof *number);
  from->remove_prefix(sizeof *number);
  return true;
}

void PutVector(const std::vector<float>& vector, std::string* to) {
  PutNumber(vector.size(), to);
  to->append(reinterpret_cast<const char*>(vector.data()), vector.size() * sizeof(float));
}

bool TakeVector(absl::string_view* from, std::vector<float>* vector) {
  uint64_t size;
  if (!TakeNumber(from, &size) || size > from->size() / sizeof(float)) return false;
  vector->resize(size);
  if (size > 0) memcpy(vector->data(), from->data(), size * sizeof(float));
  from->remove_prefix(size * sizeof(float));
  return true;
}

// Adds a share of `from`; nothing where the ranks' parts have other sizes.
void AddShare(const std::vector<float>& from, float share, std::vector<float>* to) {
  if (to->empty()) to->assign(from.size(), 0);
  if (to->size() != from.size()) return;
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] += share * from[i];
}

}  // namespace

CompressionState* CompressionStates::Find(SetId set, absl::string_view name) {
  MutexLock lock(mutex_);
  return &states_[set][name];
}

void CompressionStates::Forget(SetId set) {
  MutexLock lock(mutex_);
  states_.erase(set);
}

void CompressionStates::Began() {
  MutexLock lock(mutex_);
  ++under_way_;
}

void CompressionStates::Ended() {
  MutexLock lock(mutex_);
  --under_way_;
}

absl::StatusOr<std::string> CompressionStates::Save(SetId set) {
  MutexLock lock(mutex_);
  if (under_way_ > 0) {
    return absl::FailedPreconditionError("a compressed operation is under way; wait for it");
  }
  std::string bytes;
  PutNumber(kFormat, &bytes);
  for (const auto& [name, state] : states_[set]) {
    PutNumber(name.size(), &bytes);
    bytes += name;
    PutVector(state.residual, &bytes);
    PutVector(state.owned, &bytes);
    PutVector(state.factor, &bytes);
  }
  return bytes;
}

absl::Status CompressionStates::Load(SetId set, absl::Span<const absl::string_view> saved,
                                     int members, int self) {
  const bool as_many = saved.size() == static_cast<size_t>(members);
  Map states;
  for (size_t member = 0; member < saved.size(); ++member) {
    absl::string_view rest = saved[member];
    uint64_t format = 0;
    bool good = TakeNumber(&rest, &format) && format == kFormat;
    while (good && !rest.empty()) {
      uint64_t length;
      good = TakeNumber(&rest, &length) && length <= rest.size();
      if (!good) break;
      const absl::string_view name = rest.substr(0, length);
      rest.remove_prefix(length);
      CompressionState state;
      good = TakeVector(&rest, &state.residual) && TakeVector(&rest, &state.owned) &&
             TakeVector(&rest, &state.factor);
      if (!good) break;
      if (as_many) {
        if (member == static_cast<size_t>(self)) states[name] = std::move(state);
        continue;
      }
      // Which sums a rank sends on is another now.
      CompressionState& mean = states[name];
      AddShare(state.residual, 1 / static_cast<float>(saved.size()), &mean.residual);
      if (mean.factor.empty()) mean.factor = std::move(state.factor);
    }
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat("what member ", member, " saved is damaged, or of another version"));
    }
  }
  MutexLock lock(mutex_);
  if (under_way_ > 0) {
    return absl::FailedPreconditionError("a compressed operation is under way; wait for it");
  }
  states_[set] = std::move(states);
  return absl::OkStatus();
}

}  // namespace rueda
