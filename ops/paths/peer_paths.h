// Whether the other members' hosts can still be reached, by what the kernel knows of the
// connections to them. Gloo waits for a peer to the end of its time limit, whether the peer is late
// or cut off, and so do connections of our own.
//
// A connection on which nothing has come for a while, not even an answer to the kernel's own
// questions, may be waiting for the next of these, and ever longer between two. So a new connection
// is tried before anybody is called silent: an answer to that, be it a refusal, will do. Each look
// tries another, whose first packet goes at once.
//
// A network may drop large packets alone, where the path takes smaller ones than the interface and
// nobody says so. Then what is sent stays unacknowledged, however often the kernel sends it, and a
// new connection is answered.
//
// Gloo's module has this too, so there is nothing else of ours in it: sockets. Any thread.
#pragma once

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <chrono>
#include <mutex>
#include <vector>

namespace rueda {

class PeerPaths {
 public:
  using Clock = std::chrono::steady_clock;

  // How long a member may be silent; 0: for ever, and its sockets are left as they are.
  explicit PeerPaths(Clock::duration limit) : limit_(limit) {}
  ~PeerPaths();
  PeerPaths(const PeerPaths&) = delete;
  PeerPaths& operator=(const PeerPaths&) = delete;

  // The connection to `peer`, an IP socket that stays open.
  void Watch(int peer, int fd);
  // Or where the two ends of the connection to `peer` wait or have waited for each other; one of
  // them has.
  void Expect(int peer, const sockaddr_storage& here, const sockaddr_storage& there);
  // Finds those connections that have come about since the last time.
  void FindSockets();

  // A member that nothing has come from, or nothing large has gone to, for longer than the limit.
  // Does not block, and is to be called several times within the limit.
  struct Silence {
    int peer = -1;  // -1: there is none
    Clock::duration time = {};
    bool is_of_large = false;  // small packets are answered
  };
  Silence Silent();

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
    // While the same bytes are sent again and again: how many are to go, or are not acknowledged;
    // since when; whether something has come meanwhile, and how often they had been sent then.
    bool is_stuck = false;
    int queued = 0;
    Clock::time_point stuck_since;
    bool has_come = false;
    int sent_again = 0;
  };

  static bool IsStill(const Path& path);
  void Found(Path* path, int fd) const;
  static bool IsAnswer(int error);
  static Clock::duration StuckFor(Path* path, const tcp_info& info, Clock::duration heard,
                                  Clock::time_point now);
  static void EndTrials(Path* path);
  static void Try(Path* path, Clock::time_point now);

  const Clock::duration limit_;
  std::mutex mutex_;
  std::vector<Path> paths_;
};

}  // namespace rueda
