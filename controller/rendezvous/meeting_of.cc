#include "controller/rendezvous/meeting_of.h"

#include "absl/strings/str_cat.h"
#include "controller/rendezvous/detect/detect.h"
#include "controller/rendezvous/detect/pmi.h"
#include "controller/rendezvous/hosts_meeting.h"
#include "controller/rendezvous/secret.h"
#include "controller/rendezvous/unix_meeting.h"

namespace rueda {
namespace {

absl::StatusOr<std::unique_ptr<Meeting>> MeetingAt(const LaunchInfo& launch, const Config& config,
                                                   const SessionScope& scope) {
  const bool on_one_host = launch.local_size == launch.size;
  const bool on_several = launch.local_size > 0 && !on_one_host;
  const bool has_way = !config.meeting_address.empty() || !config.shared_dir.empty();
  if (launch.size > 1 && !on_one_host && has_way) {
    return HostsMeeting::Create(scope, launch.rank, launch.size, config);
  }
  if (on_several) {
    return absl::FailedPreconditionError(absl::StrCat(
        "of ", launch.size, " ranks ", launch.local_size, launch.local_size == 1 ? " is" : " are",
        " on this host; to meet the others set RUEDA_SHARED_DIR, for all ranks, to a directory "
        "that all hosts see, such as one in your home directory, or RUEDA_MEETING_ADDRESS to a "
        "host and a port of rank 0's and RUEDA_SECRET_FILE to a secret of theirs"));
  }
  return std::make_unique<UnixMeeting>(scope, launch.rank, launch.size);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Meeting>> MeetingOf(const Environment& environment,
                                                   const std::string& context,
                                                   BootstrapArgs* args) {
  const Config& config = *args->config;
  RUEDA_ASSIGN_OR_RETURN(LaunchInfo launch, DetectLaunch(config, environment));
  if (launch.pmi_fd >= 0) {
    RUEDA_ASSIGN_OR_RETURN(launch.job, JobOfProcessManager(launch.pmi_fd));
  }
  args->rank = launch.rank;
  args->size = launch.size;
  args->scope.job = absl::StrCat(launch.job, "/", context);
  RUEDA_ASSIGN_OR_RETURN(args->scope.secret, ReadSecret(config));
  args->may_be_on_several =
      launch.local_size < 0 && config.shared_dir.empty() && config.meeting_address.empty();
  RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<Meeting> meeting, MeetingAt(launch, config, args->scope));
  if (config.agent_fd >= 0) {
    RUEDA_ASSIGN_OR_RETURN(std::unique_ptr<VerdictBoard> board,
                           VerdictBoard::Open(static_cast<int>(config.agent_fd),
                                              static_cast<int>(config.agent_bell_fd), args->slots));
    board->TakePart(launch.rank);
    meeting->Consult(std::move(board));
  }
  return meeting;
}

}  // namespace rueda
