#include "ops/compression/state.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// Version, then for each tensor its operation, its name, and what is remembered of it; before what
// has a length stands that.
constexpr uint64_t kFormat = 2;

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

absl::Status PutResidual(const Residual& residual, std::string* to) {
  PutNumber(static_cast<uint64_t>(residual.begin), to);
  if (residual.elsewhere == nullptr) {
    PutVector(residual.values, to);
    return absl::OkStatus();
  }
  RUEDA_ASSIGN_OR_RETURN(const std::vector<float> values, residual.elsewhere->Fetch());
  PutVector(values, to);
  return absl::OkStatus();
}

bool TakeVector(absl::string_view* from, std::vector<float>* vector) {
  uint64_t size;
  if (!TakeNumber(from, &size) || size > from->size() / sizeof(float)) return false;
  vector->resize(size);
  if (size > 0) memcpy(vector->data(), from->data(), size * sizeof(float));
  from->remove_prefix(size * sizeof(float));
  return true;
}

bool TakeResidual(absl::string_view* from, Residual* residual) {
  uint64_t begin;
  if (!TakeNumber(from, &begin) || !TakeVector(from, &residual->values)) return false;
  residual->begin = static_cast<int64_t>(begin);
  // No other is ever remembered.
  return std::all_of(residual->values.begin(), residual->values.end(),
                     [](float value) { return value - value == 0; });
}

bool TakeState(absl::string_view* from, OpKind* kind, absl::string_view* name,
               CompressionState* state) {
  uint64_t number, length;
  if (!TakeNumber(from, &number) || number > static_cast<uint64_t>(OpKind::kJoin)) return false;
  *kind = static_cast<OpKind>(number);
  if (!TakeNumber(from, &length) || length > from->size()) return false;
  *name = from->substr(0, length);
  from->remove_prefix(length);
  return TakeResidual(from, &state->sent) && TakeResidual(from, &state->sums) &&
         TakeVector(from, &state->factor);
}

// Adds a share of a member's. Stripes begin elsewhere on other members: those are left.
void AddShare(const Residual& from, float share, Residual* to) {
  if (from.values.empty()) return;
  if (to->values.empty() && to->begin == 0)
    to->Of(from.begin, static_cast<int64_t>(from.values.size()));
  if (from.begin != 0 || from.begin != to->begin || from.values.size() != to->values.size()) {
    *to = {.begin = -1};  // what other members bring is left too
    return;
  }
  for (size_t i = 0; i < from.values.size(); ++i) to->values[i] += share * from.values[i];
}

}  // namespace

CompressionState* CompressionStates::Find(SetId set, OpKind kind, absl::string_view name) {
  MutexLock lock(mutex_);
  return &states_[set][kind][std::string(name)];
}

void CompressionStates::Forget(SetId set) {
  MutexLock lock(mutex_);
  states_.erase(set);
}

void CompressionStates::Began(SetId set) {
  MutexLock lock(mutex_);
  ++under_way_[set];
}

void CompressionStates::Ended(SetId set) {
  MutexLock lock(mutex_);
  --under_way_[set];
}

absl::Status CompressionStates::CheckIdle(SetId set) const {
  const auto it = under_way_.find(set);
  if (it == under_way_.end() || it->second == 0) return absl::OkStatus();
  return absl::FailedPreconditionError("a compressed operation is under way; wait for it");
}

absl::StatusOr<std::string> CompressionStates::Save(SetId set) {
  MutexLock lock(mutex_);
  RUEDA_RETURN_IF_ERROR(CheckIdle(set));
  std::string bytes;
  PutNumber(kFormat, &bytes);
  for (const auto& [kind, by_name] : states_[set]) {
    for (const auto& [name, state] : by_name) {
      PutNumber(static_cast<uint64_t>(kind), &bytes);
      PutNumber(name.size(), &bytes);
      bytes += name;
      RUEDA_RETURN_IF_ERROR(PutResidual(state.sent, &bytes));
      RUEDA_RETURN_IF_ERROR(PutResidual(state.sums, &bytes));
      PutVector(state.factor, &bytes);
    }
  }
  return bytes;
}

absl::Status CompressionStates::Load(SetId set, absl::Span<const absl::string_view> saved,
                                     int members, int self) {
  const bool as_many = saved.size() == static_cast<size_t>(members);
  ByKind states;
  for (size_t member = 0; member < saved.size(); ++member) {
    absl::string_view rest = saved[member];
    uint64_t format = 0;
    bool good = TakeNumber(&rest, &format) && format == kFormat;
    while (good && !rest.empty()) {
      OpKind kind;
      absl::string_view name;
      CompressionState state;
      good = TakeState(&rest, &kind, &name, &state);
      if (!good) break;
      if (as_many) {
        if (member == static_cast<size_t>(self)) states[kind][std::string(name)] = std::move(state);
        continue;
      }
      // Which sums a rank sends on is another now.
      CompressionState& mean = states[kind][std::string(name)];
      AddShare(state.sent, 1 / static_cast<float>(saved.size()), &mean.sent);
      if (mean.factor.empty()) mean.factor = std::move(state.factor);
    }
    if (!good) {
      return absl::InvalidArgumentError(
          absl::StrCat("what member ", member, " saved is damaged, or of another version"));
    }
  }
  MutexLock lock(mutex_);
  RUEDA_RETURN_IF_ERROR(CheckIdle(set));
  for (const auto& [kind, by_name] : states_[set]) {
    for (const auto& [name, state] : by_name)
      states[kind][std::string(name)].automatic = state.automatic;
  }
  states_[set] = std::move(states);
  return absl::OkStatus();
}

}  // namespace rueda
