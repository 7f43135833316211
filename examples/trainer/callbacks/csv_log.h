// Metrics as comma-separated values.
#pragma once

#include <string>
#include <vector>

#include "examples/trainer/callback.h"

namespace trainer {

// A line an epoch, under a line of names: epoch, step, then the first epoch's metrics. Rank 0
// writes it. A training that goes on from a checkpoint takes out the lines of epochs that it is
// going to do again, and goes on below; any other replaces the file.
class CsvLog : public Callback {
 public:
  explicit CsvLog(std::string path) : path_(std::move(path)) {}
  std::string name() const override { return "csv_log"; }
  // std::runtime_error: the file can't be written, or is not one of these.
  void OnBegin(Training& training) override;
  // RUEDA_INVALID_ARGUMENT: the metrics' names are others than the first epoch's.
  void OnEpoch(Training& training) override;

 private:
  void Write(const std::string& text);

  const std::string path_;
  std::string header_;  // "": not written yet
};

}  // namespace trainer
