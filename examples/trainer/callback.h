// What may be hooked into a training, and what it sees of it.
#pragma once

#include <rueda/rueda.hpp>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace rueda::libtorch {
class Strategy;
}

namespace trainer {

using Metrics = std::map<std::string, double>;

// A training in progress. Of all ranks, the same on each but for `rank`.
class Training {
 public:
  virtual ~Training() = default;

  int rank = 0;
  int ranks = 1;
  int64_t first_epoch = 1;   // above 1: it goes on from a checkpoint
  std::string resumed_from;  // that checkpoint's file; "": none
  bool validates = false;    // there are metrics of a validation loader
  int64_t max_epochs = 0;
  int64_t steps_in_epoch = 0;
  int64_t epoch = 0;  // the present one, or the last that ended
  int64_t step = 0;   // that have ended since the training began, in earlier runs too
  Metrics metrics;    // of the last epoch, averaged over all ranks' samples

  // RUEDA_INVALID_ARGUMENT, with the names that there are: there is no such metric.
  double Metric(const std::string& name) const;
  // For OnCheck. RUEDA_INVALID_ARGUMENT: there isn't going to be such a metric, as its name is one
  // of the validation loader's, "val_...", and there is none. Of others one can't know it yet.
  void CheckMetric(const std::string& name) const;
  // Ends the training on all ranks after this epoch; one rank may say so alone.
  void Stop() { stop_ = true; }
  virtual rueda::libtorch::Strategy& strategy() = 0;
  // Writes all that it takes to go on as if nothing had happened: `path`, which the strategy's save
  // writes, and beside it a file whose name ends in .json. Collective.
  virtual void Save(const std::string& path) = 0;

 protected:
  bool stop_ = false;
};

// All ranks have the same callbacks in the same order. Each function is called on all ranks, and
// what it throws on one rank all ranks throw, but for OnStep. In an elastic training each
// membership begins as one does that goes on from a checkpoint: LoadState, OnCheck and OnBegin are
// called once more, and this rank may be another one.
class Callback {
 public:
  virtual ~Callback() = default;
  // Different for each of a training: it names the callback's part of a checkpoint.
  virtual std::string name() const = 0;

  // After a checkpoint was loaded, and before any callback's OnBegin: refuses what can't go well,
  // and changes nothing outside, as another one may refuse too.
  virtual void OnCheck(Training&) {}
  virtual void OnBegin(Training&) {}
  virtual void OnStep(Training&) {}
  // May add to the metrics.
  virtual void OnMetrics(Training&) {}
  // The metrics are complete.
  virtual void OnEpoch(Training&) {}
  // After all others' OnEpoch, whose state is now that of the epoch's end.
  virtual void OnCheckpoint(Training&) {}
  virtual void OnEnd(Training&) {}

  // What belongs into a checkpoint, from rank 0, and goes to all ranks. Null: nothing.
  virtual nlohmann::json SaveState() const { return nullptr; }
  virtual void LoadState(const nlohmann::json&) {}
};

}  // namespace trainer
