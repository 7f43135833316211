// How a rank of this host has ended, where its launcher is not ours, torchrun say, and tells
// nobody.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/failure/failure_detector.h"

namespace rueda {

// As the kernel has it until a process's parent asks. Any thread.
class ProcessVerdicts : public Verdicts {
 public:
  // By rank; 0: one of another host, or this process's own.
  explicit ProcessVerdicts(std::vector<int> pids) : pids_(std::move(pids)) {}

  std::optional<std::string> HowItEnded(Rank rank) const override;
  Rank BlamedBy(Rank /*rank*/) const override { return -1; }
  bool KnowsAll() const override { return false; }
  bool MayCome(Rank rank) const override;

 private:
  const std::vector<int> pids_;
};

}  // namespace rueda
