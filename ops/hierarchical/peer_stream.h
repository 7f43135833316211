// A connection to another host, for the messages of one stripe: each is a header, and what follows
// it. What is sent is not copied, and what comes goes where it belongs at once.
//
// The engine's; nothing blocks.
#pragma once

#include <cstddef>
#include <deque>

#include "core/base/status.h"
#include "ops/backend/connector.h"
#include "ops/hierarchical/stripe_exchange.h"

namespace rueda {

class PeerStream {
 public:
  class User {
   public:
    // Where what follows the header goes; null: there is no room yet, ask again. An error: it makes
    // no sense.
    virtual absl::StatusOr<char*> PlaceFor(int peer, const CrossHeader& header) = 0;
    // All of it has come; it has gone.
    virtual void OnReceived(int peer, const CrossHeader& header) = 0;
    virtual void OnSent(const CrossHeader& header) = 0;

   protected:
    ~User() = default;
  };

  // `user` outlives this.
  PeerStream(int peer, Connection connection, User* user)
      : peer_(peer), connection_(std::move(connection)), user_(*user) {}

  // The socket may have become ready for it.
  void MayRead() { may_read_ = true; }
  void MayWrite() { may_write_ = true; }

  // Queues a message; `data` has header.bytes bytes, and stays until the user is told.
  void Send(const CrossHeader& header, const char* data) { out_.push_back({header, data, 0}); }

  // Each sends or receives as much as there is, at most for about 100 us, and says whether that was
  // anything. UNAVAILABLE: the connection is gone.
  absl::StatusOr<bool> Write();
  absl::StatusOr<bool> Read();

 private:
  struct Outgoing {
    CrossHeader header;
    const char* data;
    size_t sent;  // of both
  };

  int fd() const { return connection_.fd.get(); }
  void Sent(size_t bytes);
  absl::StatusOr<bool> FindPlace();
  void Received(size_t bytes);

  const int peer_;
  const Connection connection_;
  User& user_;
  bool may_read_ = true;
  bool may_write_ = true;
  std::deque<Outgoing> out_;

  // What comes: a header, of which so many bytes are there, and what follows, once it has a place.
  CrossHeader header_ = {};
  size_t header_bytes_ = 0;
  char* at_ = nullptr;
  size_t left_ = 0;
  CrossHeader next_ = {};  // read behind it
};

}  // namespace rueda
