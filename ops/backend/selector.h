// Which backend serves a process set: the first viable one of a table that can be printed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "ops/backend/backend.h"

namespace rueda {

struct Candidate {
  std::string backend;
  absl::Status verdict;  // OK, or why it can't serve the members
};

struct Selection {
  Backend* backend = nullptr;         // null: none
  std::vector<Candidate> candidates;  // in order of preference
  // One line a candidate: "shm   yes", "gloo  no: ...". No line feed at the end.
  std::string Table() const;
};

// `backends` in order of preference; those behind the first that can are not asked. `requested` is
// the knob `backend`: "auto", or the only name that may be chosen. One member alone is served by
// the first that can, whatever was asked for. Those for tensors on a device are left out.
// FAILED_PRECONDITION with the table when nothing is viable.
absl::StatusOr<Selection> SelectBackend(absl::string_view requested, const Members& members,
                                        absl::Span<const std::unique_ptr<Backend>> backends);

}  // namespace rueda
