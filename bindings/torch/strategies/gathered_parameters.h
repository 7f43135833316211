// Parameters of which each rank keeps a share, and which are whole only while operators use them:
// what ZeRO's stage 3 (arXiv 1910.02054) adds to sharded.cc.
//
// A module has no hooks in C++. So this watches torch's operators instead: when one is about to use
// a unit's memory, the unit is gathered into it, the one before is released, and the one that came
// next the last time is on its way meanwhile. What autograd has saved of a parameter shares its
// memory, and is there again when the parameter is.
//
// Ranks may use units in another order, or not the same ones. They gather in rounds: the k-th
// gather of each is one operation, in which each unit has a shape of its own. Where ranks want
// different units, it fails on all of them; they tell each other what they want, and gather all of
// that. A rank that has reached the end of a pass takes part until all have: Meet().
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "bindings/torch/operation.h"
#include "bindings/torch/operator_observer.h"
#include "bindings/torch/strategies/spare_memory.h"

namespace rueda::libtorch {

// For one thread at a time; its operators' backward passes may run on others.
class GatheredParameters {
 public:
  struct Args {
    rueda_context* context;
    ProcessSet process_set;
    std::string name;     // begins the names of the operations
    SpareMemory* memory;  // for gathered units; outlives this
  };
  explicit GatheredParameters(Args args);
  // Leaves memory as it is: what is not gathered can't be read any more.
  ~GatheredParameters();
  GatheredParameters(const GatheredParameters&) = delete;
  GatheredParameters& operator=(const GatheredParameters&) = delete;

  struct Unit {
    std::string label;  // for people
    at::Tensor values;  // all ranks' shares one after another; the parameters are views of it
    at::Tensor shard;   // this rank's, in memory of its own; no two units' have one size
    std::vector<at::Tensor> parameters;
  };
  // The same units in the same order on all ranks. Gives back the values' memory.
  void Add(Unit unit);
  // No more units come: watches operators from here on.
  void Start();

  // Collective. Helps ranks that use other units than this one, until all are here; then nothing is
  // gathered, and shards may be changed. Throws how a gather has failed.
  void Meet();
  // Collective. All units are whole until Release().
  void GatherAll();
  // What was changed in parameters goes to the shards.
  void Release();
  // What has gone wrong while an operator waited: it could not be told there.
  void ThrowError();

 private:
  static constexpr int kNone = -1;
  static constexpr int kAll = -2;

  struct State {
    Unit unit;
    at::Tensor memory;      // undefined unless it is gathered
    uint32_t versions = 0;  // of the parameters when it was
    bool written = false;   // to the memory, in whatever tensor's name
  };
  // A round: all ranks have it, not all with the same unit.
  struct Round {
    int unit;  // kNone: this rank wants none; kAll: it has all
    at::Tensor memory;
    std::shared_ptr<Operation> operation;
  };

  void OnOperator(c10::ArrayRef<const c10::StorageImpl*> storages, bool writes);
  void Use(const std::vector<int>& units);
  void BeginRound(int unit, bool wait_soon);
  bool EndRound();
  void Disagree(int wanted, const Error& error);
  at::Tensor GatherNow(int unit);
  bool AllHaveAll();
  void Install(int unit, at::Tensor memory);
  void KeepShare(State& state);
  void Evict(int unit);
  void Close(int unit, const std::string& why);
  void CloseWithError(const std::string& error);
  int Predict(int unit);
  uint32_t VersionsOf(const State& state) const;

  const Args args_;
  int ranks_ = 0;
  int index_ = 0;
  // Constant after Start().
  std::vector<State> states_;  // what is in them is guarded by mutex_
  std::unordered_map<const c10::StorageImpl*, int> unit_of_;

  std::mutex mutex_;
  // Guarded by mutex_.
  bool whole_ = false;
  std::vector<int> current_;  // the units of the operator that last needed others than those before
  std::optional<Round> round_;  // that has begun
  int rounds_ = 0;              // since all have met
  // By kind of pass, the unit before, the unit: which was used next.
  std::map<std::array<int, 3>, int> next_;
  std::array<int, 3> place_ = {kNone, kNone, kNone};
  std::exception_ptr error_;

  std::optional<OperatorObserver> observer_;  // last: goes first
};

}  // namespace rueda::libtorch
