// Metrics for TensorBoard.
#pragma once

#include <fstream>
#include <string>

#include "examples/trainer/callback.h"

namespace trainer {

// A file of events in DIRECTORY, as TensorBoard reads them: a scalar for each metric, averaged over
// the ranks, after each epoch, by step. Rank 0 writes it. Each training writes a
// file of its own, which says that of earlier ones in the directory what came later than its
// beginning does not count.
//
//     tensorboard --logdir DIRECTORY
class TensorBoard : public Callback {
 public:
  // The directory is made if it is not there.
  explicit TensorBoard(std::string directory) : directory_(std::move(directory)) {}
  std::string name() const override { return "tensorboard"; }
  // std::runtime_error: the file can't be written.
  void OnCheck(Training& training) override;
  void OnBegin(Training& training) override;
  void OnEpoch(Training& training) override;

 private:
  void Write(const std::string& event);

  const std::string directory_;
  std::string path_;
  std::ofstream stream_;
};

}  // namespace trainer
