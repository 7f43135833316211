// PURE
#include "controller/protocol/authentication.h"

#include <sodium.h>

#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

constexpr char kMagic[] = "RUEDA\0\0\2";  // the last byte is the version of the handshake
constexpr size_t kMagicBytes = 8;

static_assert(Handshake::kHelloBytes == kMagicBytes + 8 + 4 + 4 + kNonceBytes);
static_assert(Handshake::kHelloBytes + Handshake::kFinishBytes <= kHandshakeBytesMax);
static_assert(Handshake::kReplyBytes <= kHandshakeBytesMax);

template <typename T>
void Put(std::string* out, T value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out->push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}

template <typename T>
T Take(const char* in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(in[i])) << (8 * i);
  }
  return static_cast<T>(value);
}

// One key per direction: the MAC of the transcript behind a label, which no proof begins with.
SessionKey DeriveKey(absl::string_view secret, absl::string_view label,
                     absl::string_view transcript) {
  return ComputeMac(secret, absl::StrCat(label, transcript));
}

}  // namespace

Mac ComputeMac(absl::string_view key, absl::string_view message) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(key.data());
  std::array<uint8_t, crypto_generichash_KEYBYTES_MAX> hashed;
  const bool is_long = key.size() > hashed.size();
  if (is_long) {  // as HMAC does
    crypto_generichash(hashed.data(), hashed.size(), bytes, key.size(), nullptr, 0);
  }
  Mac mac;
  crypto_generichash(mac.data(), mac.size(), reinterpret_cast<const uint8_t*>(message.data()),
                     message.size(), is_long ? hashed.data() : bytes,
                     is_long ? hashed.size() : key.size());
  return mac;
}

std::string NameFor(absl::string_view purpose, absl::string_view text) {
  const Mac mac = ComputeMac(purpose, text);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(mac.data()), mac.size() / 2));
}

bool EqualMacs(const Mac& a, absl::string_view b) {
  return b.size() == a.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Handshake::Handshake(SessionScope scope, Rank self, Rank peer, const Nonce& nonce, bool client)
    : scope_(std::move(scope)),
      self_(self),
      peer_(peer),
      client_(client),
      expected_(client ? kReplyBytes : kHelloBytes) {
  (client ? client_nonce_ : server_nonce_) = nonce;
}

Handshake Handshake::Client(SessionScope scope, Rank self, Rank peer, const Nonce& nonce) {
  return Handshake(std::move(scope), self, peer, nonce, true);
}

Handshake Handshake::Server(SessionScope scope, Rank self, const Nonce& nonce) {
  return Handshake(std::move(scope), self, -1, nonce, false);
}

std::string Handshake::Transcript() const {
  std::string text;
  Put(&text, static_cast<uint32_t>(scope_.job.size()));
  text += scope_.job;
  Put(&text, scope_.membership);
  Put(&text, client_ ? self_ : peer_);
  Put(&text, client_ ? peer_ : self_);
  absl::StrAppend(&text, View(client_nonce_), View(server_nonce_));
  return text;
}

std::string Handshake::Begin() {
  if (!client_) return "";
  std::string hello(kMagic, kMagicBytes);
  Put(&hello, scope_.membership);
  Put(&hello, self_);
  Put(&hello, peer_);
  absl::StrAppend(&hello, View(client_nonce_));
  return hello;
}

absl::StatusOr<std::string> Handshake::Receive(absl::string_view bytes) {
  RUEDA_CHECK(bytes.size() == expected_);
  if (expected_ == kFinishBytes) {
    if (!EqualMacs(ComputeMac(scope_.secret.bytes(), absl::StrCat("C", Transcript())), bytes)) {
      return absl::UnauthenticatedError("a client does not know the job's secret");
    }
    expected_ = 0;
    return "";
  }
  if (memcmp(bytes.data(), kMagic, kMagicBytes) != 0) {
    return absl::DataLossError("a peer does not speak this protocol (or this version of it)");
  }
  const char* rest = bytes.data() + kMagicBytes;
  if (client_) {
    memcpy(server_nonce_.data(), rest, kNonceBytes);
    const absl::string_view mac(rest + kNonceBytes, kMacBytes);
    if (!EqualMacs(ComputeMac(scope_.secret.bytes(), absl::StrCat("S", Transcript())), mac)) {
      return absl::UnauthenticatedError("the server does not know the job's secret");
    }
    expected_ = 0;
    return std::string(View(ComputeMac(scope_.secret.bytes(), absl::StrCat("C", Transcript()))));
  }
  const uint64_t membership = Take<uint64_t>(rest);
  peer_ = Take<Rank>(rest + 8);
  const Rank meant = Take<Rank>(rest + 12);
  memcpy(client_nonce_.data(), rest + 16, kNonceBytes);
  if (membership != scope_.membership) {
    return absl::FailedPreconditionError(absl::StrCat("a client is in membership ", membership,
                                                      ", this is membership ", scope_.membership));
  }
  if (meant != self_ || peer_ < 0 || peer_ >= kRanksMax) {
    return absl::FailedPreconditionError(
        absl::StrCat("a client that says it is rank ", peer_, " looks for rank ", meant));
  }
  expected_ = kFinishBytes;
  std::string reply(kMagic, kMagicBytes);
  absl::StrAppend(&reply, View(server_nonce_),
                  View(ComputeMac(scope_.secret.bytes(), absl::StrCat("S", Transcript()))));
  return reply;
}

SessionKeys Handshake::keys() const {
  const std::string transcript = Transcript();
  const SessionKey to_server =
      DeriveKey(scope_.secret.bytes(), "rueda client to server", transcript);
  const SessionKey to_client =
      DeriveKey(scope_.secret.bytes(), "rueda server to client", transcript);
  return client_ ? SessionKeys{to_server, to_client} : SessionKeys{to_client, to_server};
}

}  // namespace rueda
