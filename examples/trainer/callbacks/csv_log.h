// Metrics as comma-separated values.
#pragma once

#include <string>
#include <vector>

#include "examples/trainer/callback.h"

namespace trainer {

// A line an epoch, under a line of names: epoch, step, then the metrics. One that comes later (a
// training may go on with more of them) gets a column at the end, which is empty before. Rank 0
// writes it. A training that goes on from a checkpoint takes out the lines of epochs that it is
// going to do again, and goes on below; any other replaces the file.
class CsvLog : public Callback {
 public:
  explicit CsvLog(std::string path) : path_(std::move(path)) {}
  std::string name() const override { return "csv_log"; }
  // std::runtime_error: the file can't be written, or is not one of these.
  void OnCheck(Training& training) override;
  void OnBegin(Training& training) override;
  void OnEpoch(Training& training) override;

 private:
  // Everything.
  void Write() const;

  const std::string path_;
  std::vector<std::string> columns_;  // the metrics' names; nothing before the first epoch
  std::vector<std::string> lines_;    // below
};

}  // namespace trainer
