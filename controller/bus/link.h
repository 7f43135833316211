// An authenticated control connection: the handshake of controller/protocol/authentication.h, then
// frames. Non-blocking; whoever owns it calls OnReadable and OnWritable when the socket is ready.
//
// Before the peer has proved itself at most kHandshakeBytesMax bytes of it are read, and none
// parsed.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "controller/protocol/authentication.h"
#include "controller/protocol/frame.h"
#include "core/base/clock.h"
#include "core/base/closed_in_child.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace rueda {

class Link {
 public:
  struct Received {
    Frame frame;
    std::vector<UniqueFd> descriptors;  // frame.descriptors of them
  };

  static std::unique_ptr<Link> Client(UniqueFd fd, const SessionScope& scope, Rank self, Rank peer);
  static std::unique_ptr<Link> Server(UniqueFd fd, const SessionScope& scope, Rank self);

  int fd() const { return fd_.get(); }
  bool established() const { return writer_ != nullptr; }
  // The rank at the other end; for a server's link once it is established.
  Rank peer() const { return handshake_.peer(); }

  // Queues a frame; it leaves as the socket takes it. The descriptors are duplicated. Nothing is
  // queued for a peer that is gone.
  void Send(FrameType type, absl::string_view payload, const std::vector<int>& descriptors = {});
  bool wants_write() const { return !out_.empty(); }
  // How many bytes of what was queued the socket has taken.
  uint64_t written() const { return written_; }

  // Reads what is there; Next then has the whole frames. UNAVAILABLE: the peer closed, or the
  // connection is lost; other errors: the peer can't be trusted. Either way the link is dead, but
  // for the frames that came before.
  absl::Status OnReadable();
  absl::Status OnWritable();
  bool Next(Received* received);

  // Of a link that no frames follow, once it is established and nothing is left to write: its
  // connection, with which it is over.
  UniqueFd TakeSocket() { return std::move(fd_); }

  // The last words are said: the peer sees the end behind them.
  void StopSending();
  // Throws away what is there; false when the peer has closed.
  bool Drain();

 private:
  struct Outgoing {
    std::string bytes;
    size_t sent = 0;
    std::vector<UniqueFd> descriptors;
  };

  Link(UniqueFd fd, const SessionScope& scope, Rank self, Handshake handshake);
  absl::Status Shake();
  void Queue(FrameType type, absl::string_view payload, std::vector<UniqueFd> descriptors);
  void StopQueueing();
  absl::Status ReadSome(size_t bytes_max, bool* more);

  UniqueFd fd_;
  const ClosedInChild closed_in_child_;
  const SessionScope scope_;
  const Rank self_;
  Handshake handshake_;
  std::unique_ptr<FrameWriter> writer_;
  std::unique_ptr<FrameReader> reader_;
  struct Early {  // sent before the handshake was over
    FrameType type;
    std::string payload;
    std::vector<UniqueFd> descriptors;
  };
  std::vector<Early> early_;
  std::deque<Outgoing> out_;
  uint64_t written_ = 0;
  bool unheard_ = false;  // the peer is gone
  std::string in_;
  std::deque<UniqueFd> in_descriptors_;
  std::deque<Received> inbox_;
};

// Handles what poll(2) says of the link's socket. Errors as of OnReadable.
absl::Status OnReady(Link* link, short revents);

// Block until the link is established, until a frame has come (which must be of the expected type;
// kRefused is FAILED_PRECONDITION with its text, a roster of an error is that error), or until
// everything is sent; at most to `deadline`. Errors name the peer once it has proved who it is, and
// LostRank does when it is gone. For bootstrap, where nothing else needs looking after.
absl::Status WaitEstablished(Link* link, Nanos deadline);
absl::StatusOr<Link::Received> WaitFrame(Link* link, FrameType expected, Nanos deadline);
absl::Status WaitFlushed(Link* link, Nanos deadline);
// Of several, none of which holds up the others: hands on each frame, until `take` has said of each
// link that this was its last.
absl::Status WaitFrames(absl::Span<Link* const> links, FrameType expected,
                        absl::FunctionRef<bool(Link*, const Frame&)> take, Nanos deadline);
// Of several, none of which holds up the others. The first error.
absl::Status WaitFlushed(absl::Span<const std::unique_ptr<Link>> links, Nanos deadline);

// Of a frame from a peer whose start has failed: why. OK of another frame.
absl::Status WhyItGaveUp(const Frame& frame);
// What the peer of a link that has ended has said of it, or else `otherwise`.
absl::Status LastWords(Link* link, absl::Status otherwise);

// Closes links whose last words the peers are to get. A TCP socket that is closed with something
// unread resets the connection, and the peer may lose what is under way to it: so this waits until
// the peers have closed, at most to `deadline`.
void CloseGently(std::vector<std::unique_ptr<Link>> links, Nanos deadline);
// How long peers may take to hear why a start has failed, or why they are refused, and to close.
inline constexpr Nanos kFarewellLimit = kSecond;

}  // namespace rueda
