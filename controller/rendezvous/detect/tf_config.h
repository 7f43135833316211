// TF_CONFIG, by which TensorFlow's cluster managers tell a process who the others are and which one
// it is: {"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}, "task": {"type": "worker",
// "index": 0}} (TensorFlow, "Distributed training": "TF_CONFIG"). PURE
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace rueda {

struct TfTask {
  int rank = 0;         // the chief, if there is one, is 0; workers follow by their index
  int size = 1;         // chiefs and workers
  int local_size = 1;   // those of them whose address has the same host as this one's
  std::string cluster;  // all their addresses
};

// Nothing: it names no cluster, or one of a single task. INVALID_ARGUMENT: it is no JSON, or has
// not the form above. FAILED_PRECONDITION: this task trains nothing (a parameter server, an
// evaluator).
absl::StatusOr<std::optional<TfTask>> ParseTfConfig(absl::string_view text);

}  // namespace rueda
