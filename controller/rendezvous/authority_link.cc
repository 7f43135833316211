#include "controller/rendezvous/authority_link.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "controller/protocol/codec.h"
#include "core/base/datagram.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

absl::Status LauncherHasGone() {
  return absl::UnavailableError("ruedarun has gone, which decides who goes on");
}

bool IsAnswerTo(const wire::KeptPart& wanted, const wire::KeptPart& part) {
  return part.name() == wanted.name() && part.number() == wanted.number() &&
         part.membership() == wanted.membership() && part.rank() == wanted.rank();
}

}  // namespace

absl::Status CheckRecord(const wire::Record& record) {
  const int size = record.slots_size();
  const auto is_none = [](int32_t number) { return number < 0 || number >= kElasticProcessesMax; };
  const bool good = record.membership() > 0 && size >= 1 && size <= kRanksMax &&
                    record.hosts_size() == size && record.rank() >= 0 && record.rank() < size &&
                    record.survivors() >= 0 && record.survivors() <= size && record.source() >= 0 &&
                    record.source() < std::max(1, record.survivors()) && record.keeping() >= 0 &&
                    std::none_of(record.slots().begin(), record.slots().end(), is_none) &&
                    std::none_of(record.hosts().begin(), record.hosts().end(), is_none);
  return good ? absl::OkStatus()
              : absl::DataLossError("the launcher's record of a membership is none");
}

absl::StatusOr<AuthorityLink*> AuthorityLink::Of(int fd) {
  struct Own {
    Mutex mutex;
    AuthorityLink* link ABSL_GUARDED_BY(mutex) = nullptr;  // outlives every context
    int pid ABSL_GUARDED_BY(mutex) = 0;                    // of the process that it is of
  };
  static Own* const own = new Own;
  MutexLock lock(own->mutex);
  if (own->link != nullptr && own->pid == getpid()) return own->link;
  fcntl(fd, F_SETFD, FD_CLOEXEC);  // programs that this process starts don't get it
  int type = 0;
  socklen_t size = sizeof type;
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  const bool is_socket =
      copy.valid() && getsockopt(copy.get(), SOL_SOCKET, SO_TYPE, &type, &size) == 0;
  if (own->link != nullptr || !is_socket || type != SOCK_SEQPACKET) {
    return absl::FailedPreconditionError(
        absl::StrCat("RUEDA_ELASTIC_FD=", fd,
                     ": that descriptor is not the way to the launcher. A child of a process of an "
                     "elastic job takes no part in it"));
  }
  own->pid = getpid();
  own->link = new AuthorityLink(std::move(copy));
  return own->link;
}

absl::StatusOr<wire::ToProcess> AuthorityLink::Receive(int flags, UniqueFd* memory) const {
  UniqueFd none;
  absl::StatusOr<std::string> bytes =
      ReceiveDatagram(fd_.get(), kElasticBytesMax, memory == nullptr ? &none : memory, flags);
  if (absl::IsUnavailable(bytes.status())) return LauncherHasGone();
  RUEDA_RETURN_IF_ERROR(bytes.status());
  wire::ToProcess message;
  RUEDA_RETURN_IF_ERROR(ParseMessage(*bytes, &message));
  if (message.has_record()) RUEDA_RETURN_IF_ERROR(CheckRecord(message.record()));
  return message;
}

void AuthorityLink::OnNews(const wire::ToProcess& message) {
  if (message.has_change()) {
    due_.added |= message.change().added();
    if (message.change().leaving_size() > 0) {
      due_.leaving.assign(message.change().leaving().begin(), message.change().leaving().end());
    }
  }
  due_.dismissed |= message.has_dismissal();
  if (message.has_nothing_kept()) due_.keeping = 0;
}

absl::StatusOr<wire::Record> AuthorityLink::Ask(uint64_t commits, int32_t blames) {
  MutexLock reading(reading_);
  TakeChanges();  // what has come before is of the membership that ends
  wire::FromProcess word;
  wire::Ask& ask = *word.mutable_ask();
  ask.set_membership(last().membership());
  ask.set_commits(commits);
  ask.set_blames(blames);
  // The launcher takes everything at once.
  if (!SendDatagram(fd_.get(), word.SerializeAsString(), -1, 0).ok()) return LauncherHasGone();
  while (true) {
    RUEDA_ASSIGN_OR_RETURN(const wire::ToProcess message, Receive(0));
    MutexLock lock(mutex_);
    OnNews(message);
    if (message.has_dismissal()) return absl::CancelledError(message.dismissal());
    // One that was asked for before, and not waited for, is none.
    if (!message.has_record() || message.record().membership() <= last_.membership()) continue;
    last_ = message.record();
    due_ = Due();
    due_.keeping = last_.keeping();
    return last_;
  }
}

void AuthorityLink::Keep(wire::KeptPart part, int memory) const {
  if (last().membership() == 0) return;  // it comes later, and is alone until then
  wire::FromProcess word;
  *word.mutable_keep() = std::move(part);
  (void)SendDatagram(fd_.get(), word.SerializeAsString(), memory, MSG_DONTWAIT);
}

absl::StatusOr<AuthorityLink::Kept> AuthorityLink::Fetch(const wire::KeptPart& wanted) {
  MutexLock reading(reading_);
  wire::FromProcess word;
  *word.mutable_fetch() = wanted;
  if (!SendDatagram(fd_.get(), word.SerializeAsString(), -1, 0).ok()) return LauncherHasGone();
  while (true) {
    Kept kept;
    RUEDA_ASSIGN_OR_RETURN(wire::ToProcess message, Receive(0, &kept.memory));
    if (message.has_kept() && IsAnswerTo(wanted, message.kept())) {
      if (!kept.memory.valid()) return absl::NotFoundError("nobody has kept it");
      kept.part = std::move(*message.mutable_kept());
      return kept;
    }
    MutexLock lock(mutex_);
    OnNews(message);
  }
}

wire::Record AuthorityLink::last() const {
  MutexLock lock(mutex_);
  return last_;
}

void AuthorityLink::TakeChanges() {
  while (true) {
    const absl::StatusOr<wire::ToProcess> message = Receive(MSG_DONTWAIT);
    if (!message.ok()) return;
    MutexLock lock(mutex_);
    OnNews(*message);
  }
}

AuthorityLink::Due AuthorityLink::due() {
  if (reading_.TryLock()) {  // else another thread asks, whose answer is not to be taken away
    TakeChanges();
    reading_.Unlock();
  }
  MutexLock lock(mutex_);
  return due_;
}

}  // namespace rueda
