// Whether the other members' hosts can still be reached, by what the kernel knows of the
// connections to them. Gloo waits for a peer to the end of its time limit, whether the peer is late
// or cut off.
//
// A connection on which nothing has come for a while, not even an answer to the kernel's own
// questions, may be waiting for the next of these, and ever longer between two. So a new connection
// is tried before anybody is called silent: an answer to that, be it a refusal, will do. Each look
// tries another, whose first packet goes at once.
//
// No Gloo here, and nothing of ours: sockets. Any thread.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <mutex>
#include <vector>

namespace rueda_gloo {

class PeerPaths {
 public:
  using Clock = std::chrono::steady_clock;

  // How long a member may be silent; 0: for ever, and its sockets are left as they are.
  explicit PeerPaths(Clock::duration limit) : limit_(limit) {}
  ~PeerPaths();
  PeerPaths(const PeerPaths&) = delete;
  PeerPaths& operator=(const PeerPaths&) = delete;

  // Where the two ends of the connection to `peer` wait or have waited for each other; one of them
  // has.
  void Expect(int peer, const sockaddr_storage& here, const sockaddr_storage& there);
  // Finds the connections that have come about since the last time.
  void FindSockets();

  // A member that has been silent for longer than the limit; -1: there is none. `silence`: for how
  // long. Does not block, and is to be called several times within the limit.
  int Silent(Clock::duration* silence);

 private:
  static constexpr int kNotLookedFor = -1;
  static constexpr int kNotFound = -2;

  struct Path {
    int peer;
    sockaddr_storage here, there;  // the listeners
    int socket = kNotLookedFor;    // Gloo's, which may close it
    sockaddr_storage local = {}, remote = {};
    bool tries = false;             // new connections, without an answer so far
    std::vector<int> trials;        // those that have not failed either
    Clock::time_point tried_since;  // the first of them
    Clock::time_point answered;     // by a new connection
  };

  static bool IsStill(const Path& path);
  static bool IsAnswer(int error);
  static void EndTrials(Path* path);
  static void Try(Path* path, Clock::time_point now);

  const Clock::duration limit_;
  std::mutex mutex_;
  std::vector<Path> paths_;
};

}  // namespace rueda_gloo
