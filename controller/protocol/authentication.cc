// PURE
#include "controller/protocol/authentication.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/check.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

constexpr char kMagic[] = "RUEDA\0\0\1";  // the last byte is the version of the handshake
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

// Of a nonce, a MAC or a key: all are 32 bytes.
absl::string_view View(const std::array<uint8_t, 32>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// libcrypto is refused memory, or has been when it set itself up; or its configuration leaves out
// what is asked for.
[[noreturn]] void ThrowCryptoError(const char* what) {
  const unsigned long error = ERR_peek_last_error();
  if (error == 0 || ERR_GET_REASON(error) == ERR_R_MALLOC_FAILURE) throw std::bad_alloc();
  const char* reason = ERR_reason_error_string(error);
  throw std::runtime_error(
      absl::StrCat("libcrypto can't ", what, reason == nullptr ? "" : ": ", reason));
}

struct CryptoFree {
  void operator()(EVP_KDF* kdf) const { EVP_KDF_free(kdf); }
  void operator()(EVP_KDF_CTX* context) const { EVP_KDF_CTX_free(context); }
};

// HKDF-SHA256, extract and expand.
SessionKey DeriveKey(absl::string_view secret, absl::string_view salt, absl::string_view label) {
  static constexpr char kWhat[] = "derive a connection's keys";
  const std::unique_ptr<EVP_KDF, CryptoFree> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  if (kdf == nullptr) ThrowCryptoError(kWhat);
  const std::unique_ptr<EVP_KDF_CTX, CryptoFree> context(EVP_KDF_CTX_new(kdf.get()));
  if (context == nullptr) ThrowCryptoError(kWhat);
  char digest[] = "SHA256";
  // An empty secret means that the kernel vouches for the peer; HKDF wants a key of some length.
  static constexpr char kNoSecret[] = "none";
  const absl::string_view key = secret.empty() ? absl::string_view(kNoSecret) : secret;
  OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<char*>(key.data()),
                                        key.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, const_cast<char*>(salt.data()),
                                        salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, const_cast<char*>(label.data()),
                                        label.size()),
      OSSL_PARAM_construct_end(),
  };
  SessionKey derived;
  if (EVP_KDF_derive(context.get(), derived.data(), derived.size(), params) != 1) {
    ThrowCryptoError(kWhat);
  }
  return derived;
}

}  // namespace

Mac ComputeMac(absl::string_view key, absl::string_view message) {
  Mac mac;
  unsigned int size = 0;
  static const uint8_t kNoKey[1] = {0};
  const void* key_data = key.empty() ? kNoKey : static_cast<const void*>(key.data());
  const uint8_t* ok =
      HMAC(EVP_sha256(), key_data, static_cast<int>(key.size()),
           reinterpret_cast<const uint8_t*>(message.data()), message.size(), mac.data(), &size);
  if (ok == nullptr || size != mac.size()) ThrowCryptoError("compute an HMAC");
  return mac;
}

std::string NameFor(absl::string_view purpose, absl::string_view text) {
  const Mac mac = ComputeMac(purpose, text);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(mac.data()), mac.size() / 2));
}

bool EqualMacs(const Mac& a, absl::string_view b) {
  return b.size() == a.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
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
      DeriveKey(scope_.secret.bytes(), transcript, "rueda client to server");
  const SessionKey to_client =
      DeriveKey(scope_.secret.bytes(), transcript, "rueda server to client");
  return client_ ? SessionKeys{to_server, to_client} : SessionKeys{to_client, to_server};
}

}  // namespace rueda
