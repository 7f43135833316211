// Every setting of the runtime, and the one table that names, documents, parses and prints them.
//
// A setting `fusion_threshold` is the knob "fusion_threshold" in rueda_init and the environment
// variable RUEDA_FUSION_THRESHOLD; some have a HOROVOD_* alias. A name that is not in the table is
// refused with the nearest one that is. PURE
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/base/status.h"

namespace rueda {

struct Config {
  // What moves the bytes and the decisions.
  std::string backend = "auto";
  std::string bus = "auto";
  int64_t fusion_threshold = 64 << 20;
  int64_t inline_bytes = 4'096;
  std::string cross = "auto";
  std::string wire_precision = "tensor";
  int64_t leader_fan_out = 32;
  std::string wait = "auto";
  std::string network_interface;
  int64_t allow_unauthenticated = 0;
  int64_t allow_unauthenticated_data = 0;
  std::string process_sets;
  // Time limits, in seconds.
  double start_timeout_s = 60;
  double stall_warn_s = 10;
  double stall_timeout_s = 0;
  double deadlock_timeout_s = 600;
  double heartbeat_limit_s = 4;
  double gloo_timeout_s = 60;
  double nccl_timeout_s = 60;
  double unwind_timeout_s = 5;
  int64_t deterministic = 0;
  std::string gradients = "horovod";  // Python reads it; here it is compared
  // What people see.
  std::string log_level = "warning";
  std::string recorder_dir;
  std::string timeline;
  std::string stop_file;
  // Where this process stands in the job. Set by the launcher.
  int64_t rank = -1;
  int64_t size = -1;
  int64_t local_rank = -1;
  int64_t local_size = -1;
  std::string job_id;
  std::string host_id;
  int64_t secret_fd = -1;
  std::string secret_file;
  std::string shared_dir;
  int64_t meeting_fd = -1;
  std::string meeting_address;
  int64_t agent_fd = -1;
  int64_t agent_bell_fd = -1;
  int64_t elastic_fd = -1;
  int64_t elastic_ranks = 0;
  int64_t hosts_fake = 0;
};

using Environment = std::map<std::string, std::string>;

// Sets one knob by its name in the table ("fusion_threshold"). INVALID_ARGUMENT names the knob,
// what was given, what is allowed, and for an unknown name the nearest known one.
absl::Status SetKnob(absl::string_view name, absl::string_view value, Config* config);

// Sets every knob that `environment` holds, as RUEDA_NAME or as its HOROVOD_ alias (the former
// wins). A RUEDA_ variable that is no knob, and a HOROVOD_ setting whose feature does not exist
// here, are INVALID_ARGUMENT by name.
absl::Status ReadEnvironment(const Environment& environment, Config* config);

// This process's environment as a map.
Environment ProcessEnvironment();

// Knobs whose value must be the same on all ranks of a job, as name and value.
std::vector<std::pair<std::string, std::string>> AgreedKnobs(const Config& config);

// The value of a knob as text; the knob exists.
std::string KnobText(absl::string_view name, const Config& config);

// docs/reference/knobs.md.
std::string KnobsMarkdown();

// The candidate with the smallest edit distance to `word`, or "" when none is near: at most a third
// of the word's letters away.
std::string Nearest(absl::string_view word, absl::Span<const std::string> candidates);

}  // namespace rueda
