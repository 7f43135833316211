// PURE
#include "controller/launcher/decide/report.h"

#include <sys/wait.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/process.h"
#include "core/base/seconds.h"

namespace rueda {
namespace {

constexpr size_t kRowsMax = 32;

bool EndedWell(const RankEnding& ending) {
  return ending.pid != 0 && ending.ended && ending.wait_status == 0;
}

}  // namespace

std::string StopText(Nanos stop_after) {
  return absl::StrCat(Seconds(stop_after),
                      " are over (--stop-after); the ranks are warned (SIGUSR1)");
}

std::string CauseText(const JobEnding& job) {
  if (job.blamed >= 0) {
    return absl::StrCat("rank ", job.first_failure, " failed because of rank ", job.blamed);
  }
  if (job.first_failure >= 0) return absl::StrCat("rank ", job.first_failure, " failed");
  if (job.supervisor_died) return "its supervisor process died";
  if (!job.lost_host.empty()) return absl::StrCat("host ", job.lost_host, " was lost");
  if (job.signal != 0) {
    return absl::StrCat(SignalName(job.signal),
                        job.signalled_host.empty() ? "" : " to the agent on host ",
                        job.signalled_host);
  }
  return "a rank could not be started";
}

std::string EndingText(const RankEnding& ending, const JobEnding& job) {
  if (ending.pid == 0) return "never started";
  if (!ending.ended && !ending.lost) return "could not be killed, and is left alone";
  if (!ending.ended) return "unknown: its host was lost";
  if (ending.ended_by_us) {
    return absl::StrCat("ended by ruedarun (", SignalName(WTERMSIG(ending.wait_status)), ") after ",
                        CauseText(job));
  }
  return WaitStatusText(ending.wait_status);
}

std::string EndingsTable(const std::vector<RankEnding>& ranks, const JobEnding& job) {
  if (std::all_of(ranks.begin(), ranks.end(), EndedWell)) return "";
  std::string text = absl::StrCat("ruedarun: the job ended after ", CauseText(job),
                                  "; exit status ", job.exit_code, "\n");
  size_t widest = 4;
  for (const RankEnding& ending : ranks) widest = std::max(widest, ending.host.size());
  const int host_width = static_cast<int>(widest);
  absl::StrAppendFormat(&text, "  %5s  %7s  %-*s  %s\n", "rank", "pid", host_width, "host",
                        "how it ended");
  size_t by_us = 0, well = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankEnding& ending = ranks[rank];
    const bool first =
        static_cast<Rank>(rank) == (job.blamed >= 0 ? job.blamed : job.first_failure);
    if (ranks.size() > kRowsMax && !first && (ending.ended_by_us || EndedWell(ending))) {
      ++(ending.ended_by_us ? by_us : well);
      continue;
    }
    const std::string pid = ending.pid == 0 ? "-" : absl::StrCat(ending.pid);
    absl::StrAppendFormat(&text, "%c %5d  %7s  %-*s  %s%s\n", first ? '*' : ' ',
                          static_cast<int>(rank), pid, host_width, ending.host,
                          EndingText(ending, job), first ? "  <- first failure" : "");
  }
  if (by_us > 0) {
    absl::StrAppend(&text, "  ", by_us, " other ranks were ended by ruedarun after ",
                    CauseText(job), "\n");
  }
  if (well > 0) absl::StrAppend(&text, "  ", well, " other ranks exited with status 0\n");
  return text;
}

}  // namespace rueda
