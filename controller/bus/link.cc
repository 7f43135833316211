#include "controller/bus/link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "controller/protocol/codec.h"
#include "controller/protocol/lost.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/random.h"

namespace rueda {
namespace {

constexpr size_t kReadBytes = 64 << 10;
constexpr int kDescriptorsMax = 250;  // the kernel takes 253 at a time

Nonce RandomNonce() {
  Nonce nonce;
  FillRandom(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace

Link::Link(UniqueFd fd, const SessionScope& scope, Rank self, Handshake handshake)
    : fd_(std::move(fd)),
      closed_in_child_(fd_.get()),
      scope_(scope),
      self_(self),
      handshake_(std::move(handshake)) {
  if (std::string hello = handshake_.Begin(); !hello.empty()) {
    out_.push_back({std::move(hello), 0, {}});
  }
}

std::unique_ptr<Link> Link::Client(UniqueFd fd, const SessionScope& scope, Rank self, Rank peer) {
  return std::unique_ptr<Link>(
      new Link(std::move(fd), scope, self, Handshake::Client(scope, self, peer, RandomNonce())));
}

std::unique_ptr<Link> Link::Server(UniqueFd fd, const SessionScope& scope, Rank self) {
  return std::unique_ptr<Link>(
      new Link(std::move(fd), scope, self, Handshake::Server(scope, self, RandomNonce())));
}

void Link::Send(FrameType type, absl::string_view payload, const std::vector<int>& descriptors) {
  RUEDA_CHECK(descriptors.size() <= kDescriptorsMax);
  if (unheard_) return;
  std::vector<UniqueFd> copies;
  for (const int fd : descriptors) copies.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!established()) {
    early_.push_back({type, std::string(payload), std::move(copies)});
    return;
  }
  Queue(type, payload, std::move(copies));
}

// A frame gets its number when there is room for it: no exception leaves a gap.
void Link::Queue(FrameType type, absl::string_view payload, std::vector<UniqueFd> descriptors) {
  out_.emplace_back();
  absl::Cleanup take_back = [this] { out_.pop_back(); };
  out_.back().bytes = writer_->Write(type, payload, static_cast<uint16_t>(descriptors.size()));
  out_.back().descriptors = std::move(descriptors);
  std::move(take_back).Cancel();
}

absl::Status Link::ReadSome(size_t bytes_max, bool* more) {
  char buffer[kReadBytes];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptorsMax)];
  iovec part = {buffer, std::min(bytes_max, sizeof buffer)};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(fd_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  *more = false;
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("connection lost: ", strerror(errno)));
  }
  if (n == 0) return absl::UnavailableError("connection closed by the other end");
  for (cmsghdr* item = CMSG_FIRSTHDR(&message); item != nullptr;
       item = CMSG_NXTHDR(&message, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      memcpy(&fd, CMSG_DATA(item) + i * sizeof fd, sizeof fd);
      in_descriptors_.emplace_back(fd);
    }
  }
  if (!established() && !in_descriptors_.empty()) {
    return absl::UnauthenticatedError("a peer sent descriptors before it proved who it is");
  }
  in_.append(buffer, static_cast<size_t>(n));
  *more = static_cast<size_t>(n) == part.iov_len;
  return absl::OkStatus();
}

// Takes the handshake's messages out of what has been read.
absl::Status Link::Shake() {
  while (!handshake_.done() && in_.size() >= handshake_.expected_bytes()) {
    const std::string message = in_.substr(0, handshake_.expected_bytes());
    in_.erase(0, message.size());
    RUEDA_ASSIGN_OR_RETURN(std::string answer, handshake_.Receive(message));
    if (!answer.empty()) out_.push_back({std::move(answer), 0, {}});
  }
  if (!handshake_.done() || established()) return absl::OkStatus();
  const SessionKeys keys = handshake_.keys();
  const FrameScope scope = {scope_.membership, self_, handshake_.peer()};
  auto writer = std::make_unique<FrameWriter>(scope, keys.send);
  reader_ = std::make_unique<FrameReader>(scope, keys.receive);
  writer_ = std::move(writer);  // established
  for (Early& early : early_) {
    Queue(early.type, early.payload, std::move(early.descriptors));
  }
  early_.clear();
  return absl::OkStatus();
}

absl::Status Link::OnReadable() {
  bool more = true;
  absl::Status end;  // the peer may close right behind its last frame
  while (more && end.ok()) {
    const size_t bytes_max = established() ? kReadBytes : handshake_.expected_bytes() - in_.size();
    end = ReadSome(bytes_max, &more);
    if (!established()) {
      RUEDA_RETURN_IF_ERROR(Shake());
      if (!established()) continue;
      if (!scope_.frames) break;
      more = end.ok();  // frames may lie behind the handshake
    }
    Received next;
    while (true) {
      RUEDA_ASSIGN_OR_RETURN(const bool whole, reader_->Read(&in_, &next.frame));
      if (!whole) break;
      if (next.frame.descriptors > in_descriptors_.size()) {
        return absl::DataLossError("a frame came without its descriptors");
      }
      for (int i = 0; i < next.frame.descriptors; ++i) {
        next.descriptors.push_back(std::move(in_descriptors_.front()));
        in_descriptors_.pop_front();
      }
      inbox_.push_back(std::move(next));
      next = Received();
    }
  }
  if (!end.ok()) {
    StopQueueing();
    return end;
  }
  return wants_write() ? OnWritable() : absl::OkStatus();
}

bool Link::Next(Received* received) {
  if (inbox_.empty()) return false;
  *received = std::move(inbox_.front());
  inbox_.pop_front();
  return true;
}

void Link::StopQueueing() {
  unheard_ = true;
  out_.clear();
}

absl::Status Link::OnWritable() {
  while (!out_.empty()) {
    Outgoing& front = out_.front();
    iovec part = {front.bytes.data() + front.sent, front.bytes.size() - front.sent};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptorsMax)];
    if (front.sent == 0 && !front.descriptors.empty()) {
      const size_t bytes = front.descriptors.size() * sizeof(int);
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(bytes);
      memset(control, 0, message.msg_controllen);
      cmsghdr* item = CMSG_FIRSTHDR(&message);
      item->cmsg_level = SOL_SOCKET;
      item->cmsg_type = SCM_RIGHTS;
      item->cmsg_len = CMSG_LEN(bytes);
      for (size_t i = 0; i < front.descriptors.size(); ++i) {
        const int fd = front.descriptors[i].get();
        memcpy(CMSG_DATA(item) + i * sizeof fd, &fd, sizeof fd);
      }
    }
    const ssize_t n = sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ENOTCONN) return absl::OkStatus();
      const int code = errno;
      StopQueueing();
      return absl::UnavailableError(absl::StrCat("connection lost: ", strerror(code)));
    }
    front.sent += static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
    if (front.sent < front.bytes.size()) return absl::OkStatus();
    out_.pop_front();
  }
  return absl::OkStatus();
}

void Link::StopSending() {
  shutdown(fd_.get(), SHUT_WR);
}

bool Link::Drain() {
  char buffer[kReadBytes];
  const ssize_t n = recv(fd_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

absl::Status OnReady(Link* link, short revents) {
  absl::Status status;
  if ((revents & POLLOUT) != 0) status = link->OnWritable();
  // One that takes nothing any more may have said why.
  if ((revents & ~POLLOUT) != 0 || !status.ok()) status.Update(link->OnReadable());
  return status;
}

// Blocking, for bootstrap ---------------------------------------------------------------------

namespace {

// What became of a link, with the name of the peer if it has proved who it is.
absl::Status Named(const Link& link, const absl::Status& status) {
  if (!link.established()) return status;
  if (absl::IsUnavailable(status)) {
    return LostError(
        link.peer(),
        absl::StrCat("rank ", link.peer(), " was lost while the job started: ", status.message()));
  }
  return StatusAt(absl::StrCat("rank ", link.peer()), status);
}

pollfd WaitOf(const Link& link) {
  return {link.fd(), static_cast<short>(POLLIN | (link.wants_write() ? POLLOUT : 0)), 0};
}

absl::Status CheckIsExpected(const Link& link, const Frame& frame, FrameType expected) {
  if (frame.type == FrameType::kRefused) {
    return absl::FailedPreconditionError(
        absl::string_view(frame.payload).substr(0, kErrorTextBytesMax));
  }
  if (frame.type == expected) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(WhyItGaveUp(frame));
  return absl::DataLossError(absl::StrCat("rank ", link.peer(), " sent a frame of type ",
                                          static_cast<int>(frame.type), " where ",
                                          static_cast<int>(expected), " was expected"));
}

// Waits until the socket can be read (or written, if something is queued) and handles that.
absl::Status Step(Link* link, Nanos deadline) {
  const Nanos left = deadline - MonotonicNow();
  if (left <= 0) return Named(*link, absl::DeadlineExceededError("no answer in time"));
  pollfd wait = WaitOf(*link);
  const int ready = poll(&wait, 1, PollTimeoutMs(left));
  if (ready < 0 && errno != EINTR) return ErrnoStatus(errno, "waiting for a connection");
  if (ready <= 0) return absl::OkStatus();
  const absl::Status status = OnReady(link, wait.revents);
  return status.ok() ? status : Named(*link, status);
}

}  // namespace

absl::Status WhyItGaveUp(const Frame& frame) {
  wire::Roster roster;
  if (frame.type != FrameType::kRoster) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(ParseMessage(frame.payload, &roster));
  return ErrorOf(roster);
}

absl::Status LastWords(Link* link, absl::Status otherwise) {
  Link::Received received;
  while (link->Next(&received)) RUEDA_RETURN_IF_ERROR(WhyItGaveUp(received.frame));
  return otherwise;
}

absl::Status WaitEstablished(Link* link, Nanos deadline) {
  while (!link->established()) RUEDA_RETURN_IF_ERROR(Step(link, deadline));
  return WaitFlushed(link, deadline);
}

absl::StatusOr<Link::Received> WaitFrame(Link* link, FrameType expected, Nanos deadline) {
  Link::Received received;
  while (!link->Next(&received)) {
    const absl::Status status = Step(link, deadline);
    if (!status.ok()) {
      if (link->Next(&received)) break;
      return status;
    }
  }
  RUEDA_RETURN_IF_ERROR(CheckIsExpected(*link, received.frame, expected));
  return received;
}

absl::Status WaitFrames(absl::Span<Link* const> links, FrameType expected,
                        absl::FunctionRef<bool(Link*, const Frame&)> take, Nanos deadline) {
  std::vector<Link*> left(links.begin(), links.end());
  std::vector<pollfd> waits;
  Link::Received received;
  while (true) {
    for (Link*& link : left) {
      while (link != nullptr && link->Next(&received)) {
        RUEDA_RETURN_IF_ERROR(CheckIsExpected(*link, received.frame, expected));
        if (take(link, received.frame)) link = nullptr;
      }
    }
    std::erase(left, nullptr);
    if (left.empty()) return absl::OkStatus();
    waits.clear();
    for (const Link* link : left) waits.push_back(WaitOf(*link));
    const Nanos now = MonotonicNow();
    if (now >= deadline) {
      return Named(*left.front(), absl::DeadlineExceededError("no answer in time"));
    }
    if (poll(waits.data(), waits.size(), PollTimeoutMs(deadline - now)) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "waiting for connections");
    }
    for (size_t i = 0; i < left.size(); ++i) {
      if (waits[i].revents == 0) continue;
      const absl::Status status = OnReady(left[i], waits[i].revents);
      if (!status.ok()) return LastWords(left[i], Named(*left[i], status));
    }
  }
}

absl::Status WaitFlushed(Link* link, Nanos deadline) {
  while (link->wants_write()) {
    absl::Status status = Step(link, deadline);
    if (!status.ok()) return LastWords(link, std::move(status));
  }
  return absl::OkStatus();
}

absl::Status WaitFlushed(absl::Span<const std::unique_ptr<Link>> links, Nanos deadline) {
  absl::Status status;
  std::vector<Link*> left;
  for (const auto& link : links) left.push_back(link.get());
  while (true) {
    std::erase_if(left, [](const Link* link) { return link == nullptr || !link->wants_write(); });
    if (left.empty()) return status;
    const Nanos now = MonotonicNow();
    if (now >= deadline) {
      status.Update(absl::DeadlineExceededError("no answer in time"));
      return status;
    }
    std::vector<pollfd> waits;
    for (const Link* link : left) waits.push_back({link->fd(), POLLIN | POLLOUT, 0});
    if (poll(waits.data(), waits.size(), PollTimeoutMs(deadline - now)) < 0 && errno != EINTR) {
      return ErrnoStatus(errno, "waiting for connections");
    }
    for (size_t i = 0; i < left.size(); ++i) {
      if (waits[i].revents == 0) continue;
      const absl::Status lost = OnReady(left[i], waits[i].revents);
      if (lost.ok()) continue;
      status.Update(LastWords(left[i], Named(*left[i], lost)));
      left[i] = nullptr;
    }
  }
}

void CloseGently(std::vector<std::unique_ptr<Link>> links, Nanos deadline) {
  for (const auto& link : links) link->StopSending();
  while (!links.empty()) {
    const Nanos left = deadline - MonotonicNow();
    std::vector<pollfd> waits;
    for (const auto& link : links) waits.push_back({link->fd(), POLLIN, 0});
    if (left <= 0 ||
        (poll(waits.data(), waits.size(), PollTimeoutMs(left)) < 0 && errno != EINTR)) {
      return;
    }
    for (size_t i = links.size(); i-- > 0;) {
      if (waits[i].revents != 0 && !links[i]->Drain()) {
        links.erase(links.begin() + static_cast<ptrdiff_t>(i));
      }
    }
  }
}

}  // namespace rueda
