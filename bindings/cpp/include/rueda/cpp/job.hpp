// Rueda's C++ API: joining a job, leaving it, and what it is. Included by rueda/rueda.hpp, which
// says how to use it.
#ifndef RUEDA_CPP_JOB_HPP_
#define RUEDA_CPP_JOB_HPP_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rueda/cpp/errors.hpp"
#include "rueda/cpp/handles.hpp"
#include "rueda/rueda.h"

namespace rueda {

/// \addtogroup cpp_job
/// @{

/// A knob and its value, as in docs/reference/knobs.md: {"fusion_threshold", "1048576"}.
using Knobs = std::vector<std::pair<std::string, std::string>>;

/// Joins the job that the environment describes (ruedarun sets it; without a launcher: a world of
/// one), and makes it the process's current context. Does nothing when that is initialized already,
/// but for knobs, which come too late then: FAILED_PRECONDITION.
inline void init(const Knobs& knobs = {}) {
  rueda_context* context = rueda_current_context();
  if (rueda_is_initialized(context)) {
    if (knobs.empty()) return;
    throw Error(RUEDA_FAILED_PRECONDITION,
                "init: knobs such as " + knobs[0].first + " come too late, this is initialized");
  }
  rueda_context_destroy(context);
  std::vector<const char*> words;
  for (const auto& [name, value] : knobs) {
    words.push_back(name.c_str());
    words.push_back(value.c_str());
  }
  rueda_init_options options = RUEDA_INIT_OPTIONS_INIT;
  options.flags = RUEDA_INIT_READ_ENVIRONMENT;
  options.knobs = words.data();
  options.knob_count = knobs.size();
  detail::Check(rueda_init(RUEDA_VERSION, &options, &context), nullptr);
  rueda_set_default_context(context);
}

/// The same with process sets from the start: lists of world ranks, the same on all ranks. The
/// first one is ProcessSet{1}, the second ProcessSet{2}, and so on.
inline void init(Knobs knobs, const std::vector<std::vector<int>>& process_sets) {
  std::string lists;
  for (const std::vector<int>& ranks : process_sets) {
    if (!lists.empty()) lists += ';';
    for (size_t i = 0; i < ranks.size(); ++i)
      lists += (i == 0 ? "" : ",") + std::to_string(ranks[i]);
  }
  if (!lists.empty()) knobs.emplace_back("process_sets", lists);
  init(knobs);
}

/// Leaves the job: waits for all ranks, frees the context. Does nothing when there is none.
inline void shutdown() {
  rueda_context* context = rueda_current_context();
  if (context == nullptr) return;
  const rueda_status status = rueda_shutdown(context);
  if (status == RUEDA_OK) {
    rueda_context_destroy(context);
    return detail::Sweep();
  }
  try {
    detail::ThrowLast(status, context);
  } catch (const Error&) {
    if (status != RUEDA_FAILED_PRECONDITION) {  // else: a callback's
      rueda_context_destroy(context);
      detail::Sweep();
    }
    throw;
  }
}

/// Whether there is a current context that can be used.
inline bool is_initialized() {
  return rueda_is_initialized(rueda_current_context()) == 1;
}

/// This rank, from 0 on.
inline int rank() {
  return detail::CheckNumber(rueda_rank(detail::Current()));
}
/// How many ranks there are.
inline int size() {
  return detail::CheckNumber(rueda_size(detail::Current()));
}
/// This rank among those of this host.
inline int local_rank() {
  return detail::CheckNumber(rueda_local_rank(detail::Current()));
}
/// How many ranks this host has.
inline int local_size() {
  return detail::CheckNumber(rueda_local_size(detail::Current()));
}
/// This rank among those with its local rank, one a host.
inline int cross_rank() {
  return detail::CheckNumber(rueda_cross_rank(detail::Current()));
}
/// How many ranks have this local rank.
inline int cross_size() {
  return detail::CheckNumber(rueda_cross_size(detail::Current()));
}
/// Whether all hosts have the same number of ranks.
inline bool is_homogeneous() {
  return detail::CheckNumber(rueda_is_homogeneous(detail::Current())) == 1;
}

/// Records what this rank's operations go through, from now on, in a file for chrome://tracing and
/// Perfetto: rank 0 in `path` itself, rank 3 in "t.3.json" for "t.json". Local: ranks start and
/// stop when they like.
inline void start_timeline(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw Error(RUEDA_INVALID_ARGUMENT,
                "a path with a NUL byte in it: " + std::string(path.c_str()));
  }
  detail::Check(rueda_timeline_start(detail::Current(), path.c_str()));
}
/// Ends the file. shutdown does so too.
inline void stop_timeline() {
  detail::Check(rueda_timeline_stop(detail::Current()));
}

/// The number of this rank's membership in the job: each init and each reset begins the next.
inline uint64_t membership() {
  uint64_t number = 0;
  detail::Check(rueda_context_membership(detail::Current(), &number));
  return number;
}
/// Ends the membership on all ranks: everything in flight fails with ABORTED and this reason.
inline void abort(const std::string& reason) {
  detail::Check(rueda_abort(detail::Current(), reason.c_str()));
}
/// Whether the job is to stop, as all ranks agree: a warning has come to one of them (SIGTERM,
/// SIGUSR1, RUEDA_STOP_FILE). Call it after each step, on all ranks; see rueda_should_stop.
inline bool should_stop() {
  return detail::CheckNumber(rueda_should_stop(detail::Current())) != 0;
}
/// After ABORTED: meets the same ranks again in a new membership; see rueda_context_reset.
inline void reset() {
  detail::Check(rueda_context_reset(detail::Current()));
}

/// @}

}  // namespace rueda

#endif  // RUEDA_CPP_JOB_HPP_
