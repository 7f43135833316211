#include "ops/hierarchical/peer_stream.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace rueda {
namespace {

// Of one call.
constexpr size_t kBytesAtATime = 512 << 10;
constexpr size_t kMessagesAtATime = 4;

absl::Status Lost(int error) {
  return absl::UnavailableError(absl::StrCat("connection lost: ", strerror(error)));
}

}  // namespace

absl::StatusOr<bool> PeerStream::Write() {
  bool moved = false;
  while (may_write_ && !out_.empty()) {
    iovec parts[2 * kMessagesAtATime];
    size_t count = 0, bytes = 0;
    for (size_t i = 0; i < out_.size() && i < kMessagesAtATime && bytes < kBytesAtATime; ++i) {
      Outgoing& out = out_[i];
      if (out.sent < sizeof out.header) {
        parts[count++] = {reinterpret_cast<char*>(&out.header) + out.sent,
                          sizeof out.header - out.sent};
        bytes += sizeof out.header - out.sent;
      }
      const size_t begin = out.sent - std::min(out.sent, sizeof out.header);
      const size_t left = std::min<size_t>(out.header.bytes - begin, kBytesAtATime);
      if (left == 0) continue;
      parts[count++] = {const_cast<char*>(out.data) + begin, left};
      bytes += left;
      if (begin + left < out.header.bytes) break;
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t n = sendmsg(fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return Lost(errno);
      may_write_ = false;
      break;
    }
    moved = true;
    Sent(static_cast<size_t>(n));
    if (static_cast<size_t>(n) >= kBytesAtATime) break;
  }
  return moved;
}

void PeerStream::Sent(size_t bytes) {
  while (bytes > 0) {
    Outgoing& out = out_.front();
    const size_t all = sizeof out.header + out.header.bytes;
    const size_t taken = std::min(bytes, all - out.sent);
    out.sent += taken;
    bytes -= taken;
    if (out.sent < all) return;
    const CrossHeader header = out.header;
    out_.pop_front();
    user_.OnSent(header);
  }
}

absl::StatusOr<bool> PeerStream::Read() {
  bool moved = false;
  while (may_read_) {
    if (header_bytes_ == sizeof header_ && at_ == nullptr) {
      RUEDA_ASSIGN_OR_RETURN(const bool found, FindPlace());
      if (!found) break;
      moved = true;
      continue;
    }
    iovec parts[2];
    int count = 0;
    if (at_ == nullptr) {
      parts[count++] = {reinterpret_cast<char*>(&header_) + header_bytes_,
                        sizeof header_ - header_bytes_};
    } else {
      parts[count++] = {at_, std::min(left_, kBytesAtATime)};
      if (left_ <= kBytesAtATime) parts[count++] = {&next_, sizeof next_};
    }
    const ssize_t n = readv(fd(), parts, count);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno != EAGAIN) return Lost(errno);
      may_read_ = false;
      break;
    }
    if (n == 0) return absl::UnavailableError("connection closed by the other end");
    moved = true;
    Received(static_cast<size_t>(n));
    if (static_cast<size_t>(n) >= kBytesAtATime) break;
  }
  return moved;
}

// Whether there is one.
absl::StatusOr<bool> PeerStream::FindPlace() {
  RUEDA_ASSIGN_OR_RETURN(at_, user_.PlaceFor(peer_, header_));
  if (at_ == nullptr) return false;
  left_ = header_.bytes;
  if (left_ == 0) Received(0);
  return true;
}

void PeerStream::Received(size_t bytes) {
  if (at_ == nullptr) {
    header_bytes_ += bytes;
    return;
  }
  const size_t taken = std::min(bytes, left_);
  at_ += taken;
  left_ -= taken;
  if (left_ > 0) return;
  const CrossHeader header = header_;
  at_ = nullptr;
  header_bytes_ = bytes - taken;
  memcpy(&header_, &next_, header_bytes_);
  user_.OnReceived(peer_, header);
}

}  // namespace rueda
