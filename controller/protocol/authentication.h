// Proof that a peer belongs to the job, in both directions, before one byte of it is parsed.
//
//   client -> server   hello:  magic, membership, client rank, server rank, client nonce (56 bytes)
//   server -> client   reply:  magic, server nonce, MAC(K, "S" | transcript)             (72 bytes)
//   client -> server   finish: MAC(K, "C" | transcript)                                  (32 bytes)
//
// MAC is keyed BLAKE2b of 32 bytes (RFC 7693); the transcript is the job's and context's name, the
// membership, both ranks and both nonces. The keys of the session, one per direction, are MACs of
// the same transcript behind a label, so that nothing can be replayed, reflected or moved to
// another job. PURE: nonces are passed in.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/ids.h"
#include "core/base/secret.h"
#include "core/base/status.h"

namespace rueda {

inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kMacBytes = 32;
using Nonce = std::array<uint8_t, kNonceBytes>;
using Mac = std::array<uint8_t, kMacBytes>;
using SessionKey = std::array<uint8_t, 32>;

inline absl::string_view View(const std::array<uint8_t, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Keyed BLAKE2b (RFC 7693). Of a key of more than 64 bytes, which it does not take, by the hash.
Mac ComputeMac(absl::string_view key, absl::string_view message);
// A name of 32 characters for what `text` says, another for each purpose.
std::string NameFor(absl::string_view purpose, absl::string_view text);
// In time that does not depend on where they differ.
bool EqualMacs(const Mac& a, absl::string_view b);

// What both ends know before they meet.
struct SessionScope {
  Secret secret;    // of the job; empty when the kernel vouches for the peer (SO_PEERCRED)
  std::string job;  // job id and context name
  uint64_t membership = 0;
  // Whether frames follow; else nothing behind the handshake is read, and the socket is taken.
  bool frames = true;
};

struct SessionKeys {
  SessionKey send;
  SessionKey receive;
};

class Handshake {
 public:
  static constexpr size_t kHelloBytes = 56;
  static constexpr size_t kReplyBytes = 8 + kNonceBytes + kMacBytes;
  static constexpr size_t kFinishBytes = kMacBytes;

  // A client that is rank `self` and means to reach rank `peer`.
  static Handshake Client(SessionScope scope, Rank self, Rank peer, const Nonce& nonce);
  // A server that is rank `self`; it learns the client's rank.
  static Handshake Server(SessionScope scope, Rank self, const Nonce& nonce);

  // What to send first; empty for a server.
  std::string Begin();
  // How many bytes the next message from the peer has; 0 when the handshake is over.
  size_t expected_bytes() const { return expected_; }
  // Takes exactly expected_bytes() and returns what to answer (may be empty). Errors end the
  // connection; the texts are for a log. UNAUTHENTICATED: a peer that speaks this protocol does not
  // know the secret of this job. FAILED_PRECONDITION: it is in another membership, or looks for
  // another rank. DATA_LOSS: it speaks something else.
  absl::StatusOr<std::string> Receive(absl::string_view bytes);

  bool done() const { return expected_ == 0; }
  Rank peer() const { return peer_; }
  // Once done.
  SessionKeys keys() const;

 private:
  Handshake(SessionScope scope, Rank self, Rank peer, const Nonce& nonce, bool client);
  std::string Transcript() const;

  SessionScope scope_;
  Rank self_;
  Rank peer_;
  bool client_;
  Nonce client_nonce_{};
  Nonce server_nonce_{};
  size_t expected_;
};

}  // namespace rueda
