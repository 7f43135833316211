#include "controller/runtime/connections.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controller/protocol/lost.h"

namespace rueda {

Connections::Connections(std::vector<RoleLink>* links, WaitPoint* wait_point, Nanos watch_limit,
                         int turns_between_looks, Listener* listener)
    : links_(*links),
      wait_point_(*wait_point),
      listener_(*listener),
      turns_between_looks_(turns_between_looks),
      watch_(links, watch_limit, MonotonicNow()) {}

absl::Status Connections::Open(int launchers_bell) {
  if (launchers_bell >= 0 && !links_.empty()) {
    launchers_bell_ = launchers_bell;
    RUEDA_RETURN_IF_ERROR(wait_point_.AddBell(launchers_bell));
  }
  for (const RoleLink& each : links_) {
    RUEDA_RETURN_IF_ERROR(wait_point_.AddSocket(each.link->fd()));
    const int end = watch_.EndOf(each);
    if (end >= 0) RUEDA_RETURN_IF_ERROR(wait_point_.AddSocket(end));
  }
  return absl::OkStatus();
}

void Connections::Close(const RoleLink& role_link) {
  wait_point_.RemoveSocket(role_link.link->fd());
  wait_point_.RemoveSocket(watch_.EndOf(role_link));
}

bool Connections::Pump(Nanos now) {
  const bool relayed = relay_ != nullptr && relay_->Pump();
  if (!look_ && !relayed && bus_ == nullptr && ++turns_ < turns_between_looks_) return false;
  look_ = false;
  turns_ = 0;
  if (links_.empty()) return relayed;
  bool moved = relayed;
  const Nanos looked_at = MonotonicNow();
  const std::vector<int> ready = wait_point_.ReadySockets();
  const auto is_ready = [&](int fd) {
    return std::find(ready.begin(), ready.end(), fd) != ready.end();
  };
  for (RoleLink& role_link : links_) {
    Link& link = *role_link.link;
    absl::Status status;
    const int end = watch_.EndOf(role_link);
    if (is_ready(link.fd())) {
      moved = true;
      watch_.OnHeard(&link, looked_at);
      status = link.OnReadable();  // and writes, behind the last words of a peer that is gone
    }
    if (status.ok() && end >= 0 && is_ready(end)) {
      status = link.OnReadable();  // its last words
      status.Update(absl::UnavailableError("its process has ended"));
    }
    // Frames may also have come behind the handshake, before this engine was.
    Link::Received received;
    while (link.Next(&received)) {
      moved = true;
      OnFrame(role_link, received.frame, now);
      if (!listener_.goes_on()) return true;
    }
    if (!status.ok()) {
      Close(role_link);
      listener_.OnLinkLost(link.peer(), status);
      if (!listener_.goes_on()) return true;
    }
  }
  const bool waiting = listener_.waiting();
  if (looked_at >= watch_.look_who_dies(waiting)) {
    std::optional<Watch::Lost> lost = watch_.WhoDies(looked_at);
    if (lost.has_value()) listener_.OnWatched(std::move(lost));
  }
  if (looked_at >= watch_.next(waiting)) {
    listener_.OnWatched(watch_.SendHeartbeatsAndCheck(waiting, looked_at));
  } else if (is_ready(launchers_bell_)) {
    listener_.OnWatched(std::nullopt);
  }
  // What was queued meanwhile leaves now, or when the socket can take it.
  for (RoleLink& role_link : links_) {
    if (!role_link.link->wants_write()) continue;
    (void)role_link.link->OnWritable();  // a broken connection shows when it is read
    wait_point_.WantWrite(role_link.link->fd(), role_link.link->wants_write());
  }
  return moved;
}

void Connections::OnFrame(RoleLink& role_link, const Frame& frame, Nanos now) {
  const Rank peer = role_link.link->peer();
  absl::Status status;
  switch (frame.type) {
    case FrameType::kEvents:
      status = role_link.role == LinkRole::kChild
                   ? bus_->DeliverEvents(frame.payload, peer, now)
                   : absl::InvalidArgumentError("events from one that is not below it");
      break;
    case FrameType::kPlan:
      status = role_link.role == LinkRole::kParent
                   ? bus_->DeliverPlan(frame.payload)
                   : absl::InvalidArgumentError("a plan from one that is not above it");
      break;
    case FrameType::kStoreSet:
    case FrameType::kStoreGet:
    case FrameType::kStoreValue:
      status = relay_ == nullptr ? absl::InvalidArgumentError("a store request between threads")
                                 : relay_->OnFrame(role_link.link.get(), frame);
      break;
    case FrameType::kHeartbeat:
      break;
    case FrameType::kFailure:
      listener_.OnFailureTold(peer, DecodeFailure(frame.payload));
      break;
    case FrameType::kRoster: {  // it could not start, and this rank had already
      const absl::Status why = WhyItGaveUp(frame);
      listener_.OnFailureTold(
          peer, {.rank = LostRank(why).value_or(peer), .cause = std::string(why.message())});
      break;
    }
    default:
      status = absl::InvalidArgumentError(
          absl::StrCat("a frame of type ", static_cast<int>(frame.type)));
  }
  if (!status.ok()) listener_.OnNonsense(peer, status);
}

void Connections::Send(LinkRole role, const std::string& packed) {
  for (RoleLink& role_link : links_) {
    if (role_link.role != role) continue;
    role_link.link->Send(role == LinkRole::kParent ? FrameType::kEvents : FrameType::kPlan, packed);
    (void)role_link.link->OnWritable();
    if (role_link.link->wants_write()) look_ = true;
  }
}

bool Connections::flushed() const {
  return std::none_of(links_.begin(), links_.end(),
                      [](const RoleLink& each) { return each.link->wants_write(); });
}

void Connections::EndWith(const std::string& failure_record) {
  wait_point_.RemoveSocket(launchers_bell_);
  for (RoleLink& role_link : links_) {
    if (role_link.role == LinkRole::kChild || role_link.role == LinkRole::kParent) {
      role_link.link->Send(FrameType::kFailure, failure_record);
    }
    if (role_link.link->wants_write()) (void)role_link.link->OnWritable();
    // A socket that is closed before all is read takes what it has sent with it.
    (void)role_link.link->OnReadable();
    Close(role_link);
  }
}

}  // namespace rueda
