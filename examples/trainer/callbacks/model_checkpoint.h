// Keeps the best of a training, and what it takes to go on.
#pragma once

#include <string>
#include <vector>

#include "examples/trainer/callbacks/early_stopping.h"

namespace trainer {

struct ModelCheckpointOptions {
  // Made if it is not there. On several hosts one that all see.
  std::string directory;
  std::string monitor = "val_loss";
  Mode mode = Mode::kMin;
  int best = 1;  // how many of the best epochs are kept
};

// Writes DIRECTORY/epoch-N.pt, which the strategy's save writes, and epoch-N.json after each epoch,
// and keeps those of the best epochs and of the newest. TrainerOptions::resume takes each. A
// training that goes on from an earlier one than the newest replaces those that came after.
class ModelCheckpoint : public Callback {
 public:
  // RUEDA_INVALID_ARGUMENT: `best` is below 1, or there is no directory.
  explicit ModelCheckpoint(ModelCheckpointOptions options);
  std::string name() const override { return "model_checkpoint " + options_.monitor; }
  // RUEDA_INVALID_ARGUMENT: the directory has another training's checkpoints: this one goes on from
  // none of them, nor from one of a training that had this ModelCheckpoint write there too.
  // std::runtime_error: it can't be written.
  void OnCheck(Training& training) override;
  void OnBegin(Training& training) override;
  // Decides what is kept, so that all checkpoints of this epoch have it.
  void OnEpoch(Training& training) override;
  void OnCheckpoint(Training& training) override;
  nlohmann::json SaveState() const override;
  void LoadState(const nlohmann::json& state) override;

  // The best epoch's file. "": there is none yet.
  std::string best_path() const;

 private:
  struct Entry {
    int64_t epoch;
    double value;
  };
  // The best one first; of equal ones the first.
  std::vector<Entry> Ranked() const;

  const ModelCheckpointOptions options_;
  std::vector<Entry> entries_;    // that are kept, by epoch
  std::vector<int64_t> going_;    // epochs whose files go when the next one is written
  std::string directory_before_;  // of the checkpoint that was loaded
};

}  // namespace trainer
