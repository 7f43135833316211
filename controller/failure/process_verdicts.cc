#include "controller/failure/process_verdicts.h"

#include "core/base/process.h"

namespace rueda {

std::optional<std::string> ProcessVerdicts::HowItEnded(Rank rank) const {
  const int pid = pids_[rank];
  const std::optional<int> status = pid > 0 ? WaitStatusUntilReaped(pid) : std::nullopt;
  return status.has_value() ? std::optional(EndText(*status)) : std::nullopt;
}

bool ProcessVerdicts::MayCome(Rank rank) const {
  return pids_[rank] > 0 && ProcessState(pids_[rank]) != '\0';
}

}  // namespace rueda
