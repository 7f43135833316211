// Frames: what an authenticated connection carries.
//
//   magic 4 | version 1 | type 1 | descriptors 2 | membership 8 | source 4 | destination 4
//   | sequence 8 | length 4 | payload | MAC over all of it 32                    (little-endian)
//
// A reader refuses a wrong magic, version, type, membership, address, sequence number, length or
// MAC; each means that the connection is broken or attacked, and it is closed. The length is
// checked before memory is taken for it. PURE
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "controller/protocol/authentication.h"
#include "core/base/limits.h"

namespace rueda {

enum class FrameType : uint8_t {
  kHello = 1,       // wire::Hello
  kRoster = 2,      // wire::Roster
  kNeighbours = 3,  // descriptors of the other ranks on the host
  kReady = 4,       // a bootstrap step is over
  kEvents = 5,      // wire::Events, up the tree of leaders
  kPlan = 6,        // wire::Plan, down the tree
  kFailure = 7,     // wire::Failure
  kStoreSet = 8,
  kStoreGet = 9,
  kStoreValue = 10,
  kGoodbye = 11,    // the sender closes on purpose
  kClock = 12,      // clocks.h of controller/rendezvous
  kHeartbeat = 13,  // empty: the sender is there
  kRefused = 14,    // why the receiver can't take part: a text
  kAddress = 15,    // where a leader listens for those below it: a text
};
inline constexpr int kFrameTypeMax = 15;

struct FrameScope {
  uint64_t membership = 0;
  Rank self = -1;
  Rank peer = -1;
};

struct Frame {
  FrameType type = FrameType::kGoodbye;
  uint16_t descriptors = 0;  // file descriptors that travel beside it (unix sockets only)
  std::string payload;
};

class FrameWriter {
 public:
  FrameWriter(const FrameScope& scope, const SessionKey& key) : scope_(scope), key_(key) {}
  // The payload has at most kControlFrameBytesMax bytes.
  std::string Write(FrameType type, absl::string_view payload, uint16_t descriptors = 0);

 private:
  FrameScope scope_;
  SessionKey key_;
  uint64_t sequence_ = 0;
};

class FrameReader {
 public:
  static constexpr size_t kHeaderBytes = 40;

  FrameReader(const FrameScope& scope, const SessionKey& key) : scope_(scope), key_(key) {}
  // Takes bytes off the front of `buffer`: true and a frame when a whole one was there. An error is
  // final.
  absl::StatusOr<bool> Read(std::string* buffer, Frame* frame);

 private:
  FrameScope scope_;
  SessionKey key_;
  uint64_t sequence_ = 0;
};

}  // namespace rueda
