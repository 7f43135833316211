#include "controller/rendezvous/authority_link.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "controller/protocol/codec.h"
#include "core/base/limits.h"

namespace rueda {

absl::Status CheckRecord(const wire::Record& record) {
  const int size = record.slots_size();
  const auto is_none = [](int32_t number) { return number < 0 || number >= kElasticProcessesMax; };
  const bool good = record.membership() > 0 && size >= 1 && size <= kRanksMax &&
                    record.hosts_size() == size && record.rank() >= 0 && record.rank() < size &&
                    record.survivors() >= 0 && record.survivors() <= size && record.source() >= 0 &&
                    record.source() < std::max(1, record.survivors()) &&
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

absl::StatusOr<wire::ToProcess> AuthorityLink::Receive(int flags) const {
  std::string bytes(kElasticBytesMax, 0);
  ssize_t n;
  do {
    n = recv(fd_.get(), bytes.data(), bytes.size(), flags | MSG_TRUNC);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) return absl::NotFoundError("nothing has come");
  if (n <= 0) return absl::UnavailableError("ruedarun has gone, which decides who goes on");
  wire::ToProcess message;
  if (static_cast<size_t>(n) > bytes.size()) {
    return absl::DataLossError("a message of the launcher that is too long");
  }
  bytes.resize(static_cast<size_t>(n));
  RUEDA_RETURN_IF_ERROR(ParseMessage(bytes, &message));
  if (message.has_record()) RUEDA_RETURN_IF_ERROR(CheckRecord(message.record()));
  return message;
}

void AuthorityLink::OnChange(const wire::Change& change) {
  due_.added |= change.added();
  if (change.leaving_size() > 0) {
    due_.leaving.assign(change.leaving().begin(), change.leaving().end());
  }
}

absl::StatusOr<wire::Record> AuthorityLink::Ask(uint64_t commits, int32_t blames) {
  MutexLock reading(reading_);
  TakeChanges();  // what has come before is of the membership that ends
  wire::Ask ask;
  ask.set_membership(last().membership());
  ask.set_commits(commits);
  ask.set_blames(blames);
  const std::string bytes = ask.SerializeAsString();
  // The launcher takes everything at once.
  if (send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) {
    return absl::UnavailableError("ruedarun has gone, which decides who goes on");
  }
  while (true) {
    RUEDA_ASSIGN_OR_RETURN(const wire::ToProcess message, Receive(0));
    MutexLock lock(mutex_);
    if (message.has_change()) OnChange(message.change());
    if (message.has_dismissal()) return absl::CancelledError(message.dismissal());
    // One that was asked for before, and not waited for, is none.
    if (!message.has_record() || message.record().membership() <= last_.membership()) continue;
    last_ = message.record();
    due_ = Due();
    return last_;
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
    if (message->has_change()) OnChange(message->change());
    if (message->has_dismissal()) due_.dismissed = true;
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
