// The two notations of lists in SLURM's variables. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace rueda {

// Nodes, as SLURM_JOB_NODELIST has them: "n[01-03,7],m5" is n01, n02, n03, n7, m5. A name may have
// several brackets, of which the last counts fastest, and more behind them; numbers keep the zeros
// that their range begins with. INVALID_ARGUMENT tells the place in the list, and what is expected
// there; also for more than kRanksMax nodes.
absl::StatusOr<std::vector<std::string>> ExpandSlurmNodes(absl::string_view list);

// A number for each node, as SLURM_TASKS_PER_NODE and SLURM_JOB_CPUS_PER_NODE have them: "2(x3),1"
// is 2, 2, 2, 1. INVALID_ARGUMENT as above; all are at least 1.
absl::StatusOr<std::vector<int>> ExpandSlurmCounts(absl::string_view list);

}  // namespace rueda
