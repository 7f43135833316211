#include "bindings/torch/strategies/gathered_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "bindings/torch/strategies/closed_storage.h"

namespace rueda::libtorch {
namespace {

// Rounds' names come again after so many, for loops that never meet: the library remembers each.
constexpr int kRoundNames = 1024;

// Passes use units in orders of their own.
int KindOfPass() {
  if (torch::autograd::get_current_graph_task_id() != -1) return 0;  // backward
  return at::GradMode::is_enabled() ? 1 : 2;
}

c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

}  // namespace

GatheredParameters::GatheredParameters(Args args)
    : args_(std::move(args)),
      ranks_(rueda_process_set_size(args_.context, args_.process_set.id)),
      index_(rueda_process_set_rank(args_.context, args_.process_set.id)) {}

GatheredParameters::~GatheredParameters() {
  observer_.reset();
}

void GatheredParameters::Add(Unit unit) {
  unit_of_[StorageOf(unit.values)] = static_cast<int>(states_.size());
  states_.push_back({.unit = std::move(unit), .memory = {}});
  Close(static_cast<int>(states_.size()) - 1, "");
}

void GatheredParameters::Start() {
  observer_.emplace([this](c10::ArrayRef<const c10::StorageImpl*> storages, bool writes) {
    OnOperator(storages, writes);
  });
}

uint32_t GatheredParameters::VersionsOf(const State& state) const {
  uint32_t sum = 0;
  for (const at::Tensor& parameter : state.unit.parameters) {
    sum += static_cast<uint32_t>(parameter._version());
  }
  return sum;
}

// Takes the unit's memory away. Who reads it without an operator, or after a gather has failed, is
// told `why`.
void GatheredParameters::Close(int unit, const std::string& why) {
  const State& state = states_[static_cast<size_t>(unit)];
  CloseStorage(
      StorageOf(state.unit.values), state.unit.values.device(),
      "Rueda: this rank has only its share of " + state.unit.label +
          (why.empty()
               ? ": operators gather it, what reads memory by itself (data_ptr, accessor) needs "
                 "the strategy's finish() before; keep the strategy while you use the model"
               : ", and gathering it has failed: " + why));
}

void GatheredParameters::CloseWithError(const std::string& error) {
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!states_[i].memory.defined()) Close(static_cast<int>(i), error);
  }
}

void GatheredParameters::Install(int unit, at::Tensor memory) {
  State& state = states_[static_cast<size_t>(unit)];
  // The storage has a reference of its own: it may outlive this object.
  auto* const reference = new at::Tensor(memory);
  OpenStorage(StorageOf(state.unit.values),
              c10::DataPtr(
                  reference->mutable_data_ptr(), reference,
                  [](void* tensor) { delete static_cast<at::Tensor*>(tensor); }, memory.device()));
  state.memory = std::move(memory);
  state.versions = VersionsOf(state);
  state.written = false;
}

// What was written to the unit's memory, as on all ranks.
void GatheredParameters::KeepShare(State& state) {
  if (!whole_ && !state.written && VersionsOf(state) == state.versions) return;
  at::Tensor& shard = state.unit.shard;
  shard.copy_(state.memory.narrow(0, index_ * shard.numel(), shard.numel()));
}

void GatheredParameters::Evict(int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  if (!state.memory.defined()) return;
  KeepShare(state);
  Close(unit, "");
  args_.memory->Put(std::exchange(state.memory, at::Tensor()));
}

// An error has nowhere to go from here: the operator finds its memory closed, with the reason.
void GatheredParameters::OnOperator(c10::ArrayRef<const c10::StorageImpl*> storages, bool writes) {
  std::vector<int> units;
  for (const c10::StorageImpl* storage : storages) {
    const auto it = unit_of_.find(storage);
    if (it != unit_of_.end()) units.push_back(it->second);
  }
  if (units.empty()) return;
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (whole_ || error_ != nullptr) return;
  try {
    // Also those of operators inside the one that needed them.
    if (!std::includes(current_.begin(), current_.end(), units.begin(), units.end())) Use(units);
    // By tensor.data() too, which has versions of its own.
    for (const int unit : units) states_[static_cast<size_t>(unit)].written |= writes;
  } catch (const std::exception& error) {
    error_ = std::current_exception();
    current_.clear();
    CloseWithError(error.what());
  }
}

// Holds mutex_. `units`: sorted.
void GatheredParameters::Use(const std::vector<int>& units) {
  const int next = Predict(units.front());
  const at::NoGradGuard no_grad;
  if (round_.has_value()) EndRound();  // wanted or not: the others may
  const auto is_current = [&](int unit) {
    return std::binary_search(units.begin(), units.end(), unit);
  };
  for (int unit = 0; unit < static_cast<int>(states_.size()); ++unit) {
    if (!is_current(unit)) Evict(unit);
  }
  for (const int unit : units) {
    if (states_[static_cast<size_t>(unit)].memory.defined()) continue;
    BeginRound(unit, /*wait_soon=*/true);
    EndRound();
  }
  current_ = units;
  if (next != kNone && !is_current(next)) BeginRound(next, /*wait_soon=*/false);
}

// Holds mutex_. Learns that `unit` is used now, and says what was used next the last time.
int GatheredParameters::Predict(int unit) {
  if (place_[2] != kNone) next_[place_] = unit;
  place_ = {KindOfPass(), place_[2], unit};
  const auto it = next_.find(place_);
  return it == next_.end() ? kNone : it->second;
}

// Holds mutex_. There is no other round.
void GatheredParameters::BeginRound(int unit, bool wait_soon) {
  const std::string name = args_.name + ".gather " + std::to_string(rounds_++ % kRoundNames);
  Round round{.unit = unit, .memory = {}, .operation = nullptr};
  at::Tensor input, output;
  if (unit < 0) {  // no unit's shape: a share is a cache line at least
    const int64_t columns = -unit;
    const auto options = states_.front().unit.shard.options().dtype(at::kFloat);
    input = at::zeros({1, columns}, options);
    output = at::empty({ranks_, columns}, options);
  } else {
    const at::Tensor& shard = states_[static_cast<size_t>(unit)].unit.shard;
    const int64_t share = shard.numel();
    round.memory = args_.memory->Get(ranks_ * share, shard.scalar_type(), shard.device());
    input = shard.view({1, share});
    output = round.memory.narrow(0, 0, ranks_ * share).view({ranks_, share});
  }
  round.operation = Operation::Submit(args_.context, {.kind = RUEDA_ALLGATHER,
                                                      .tensors = input,
                                                      .name = name,
                                                      .process_set = args_.process_set,
                                                      .wait_soon = wait_soon,
                                                      .outputs = output});
  round_ = std::move(round);
}

// Holds mutex_. Returns whether all ranks wanted the same.
bool GatheredParameters::EndRound() {
  Round round = *std::exchange(round_, std::nullopt);
  try {
    round.operation->Wait();
  } catch (const Error& error) {
    if (round.memory.defined()) args_.memory->Put(std::move(round.memory));
    if (error.status() != RUEDA_INVALID_ARGUMENT) throw;
    Disagree(round.unit, error);
    return false;
  }
  if (round.unit >= 0) Install(round.unit, std::move(round.memory));
  return true;
}

// Holds mutex_. All ranks are in the same round with different units: gathers all of them.
void GatheredParameters::Disagree(int wanted, const Error& error) {
  at::Tensor all = at::empty({ranks_}, at::kInt);
  const std::string name = args_.name + ".wanted";
  Operation::Execute(args_.context, {.kind = RUEDA_ALLGATHER,
                                     .tensors = at::empty({1}, at::kInt).fill_(wanted),
                                     .name = name,
                                     .process_set = args_.process_set,
                                     .outputs = all});
  std::vector<int> units(all.const_data_ptr<int>(), all.const_data_ptr<int>() + ranks_);
  std::sort(units.begin(), units.end());
  units.erase(std::unique(units.begin(), units.end()), units.end());
  if (units.size() == 1) throw error;  // it was something else
  for (const int unit : units) {
    if (unit < 0) continue;
    at::Tensor memory = GatherNow(unit);
    if (unit == wanted) {
      Install(unit, std::move(memory));
    } else {
      args_.memory->Put(std::move(memory));
    }
  }
}

// Holds mutex_. All ranks do.
at::Tensor GatheredParameters::GatherNow(int unit) {
  const at::Tensor& shard = states_[static_cast<size_t>(unit)].unit.shard;
  at::Tensor memory =
      args_.memory->Get(ranks_ * shard.numel(), shard.scalar_type(), shard.device());
  const std::string name = args_.name + ".unit " + std::to_string(unit);
  Operation::Execute(args_.context, {.kind = RUEDA_ALLGATHER,
                                     .tensors = shard,
                                     .name = name,
                                     .process_set = args_.process_set,
                                     .outputs = memory.narrow(0, 0, ranks_ * shard.numel())});
  return memory;
}

void GatheredParameters::Meet() {
  const at::NoGradGuard no_grad;
  ThrowError();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (round_.has_value()) EndRound();
  for (bool met = false; !met;) {
    for (int unit = 0; unit < static_cast<int>(states_.size()); ++unit) Evict(unit);
    whole_ = false;
    BeginRound(kNone, /*wait_soon=*/true);
    met = EndRound();
  }
  current_.clear();
  place_ = {kNone, kNone, kNone};
  rounds_ = 0;
}

// Collective. A rank that has given its own back, in a forward pass with gradients, say, needs the
// others' shares again.
bool GatheredParameters::AllHaveAll() {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!whole_) return false;
  for (State& state : states_) KeepShare(state);
  BeginRound(kAll, /*wait_soon=*/true);
  const bool all = EndRound();
  if (all) rounds_ = 0;
  return all;
}

void GatheredParameters::GatherAll() {
  if (AllHaveAll()) return;
  Meet();
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int unit = 0; unit < static_cast<int>(states_.size()); ++unit) {
    Install(unit, GatherNow(unit));
  }
  whole_ = true;
}

void GatheredParameters::Release() {
  const at::NoGradGuard no_grad;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!whole_) return;
  for (int unit = 0; unit < static_cast<int>(states_.size()); ++unit) Evict(unit);
  whole_ = false;
  current_.clear();
}

void GatheredParameters::ThrowError() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace rueda::libtorch
