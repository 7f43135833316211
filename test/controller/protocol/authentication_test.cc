// The handshake, between honest ends and with somebody in between. Each test's own thread.
#include "controller/protocol/authentication.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

constexpr Rank kClient = 3;
constexpr Rank kServer = 1;

Nonce NonceOf(uint8_t first) {
  Nonce nonce;
  for (size_t i = 0; i < nonce.size(); ++i) nonce[i] = static_cast<uint8_t>(first + i);
  return nonce;
}

SessionScope Scope() {
  return {"a secret of the job's own", "job/context", 7};
}

Handshake Client(const SessionScope& scope = Scope(), uint8_t nonce = 10) {
  return Handshake::Client(scope, kClient, kServer, NonceOf(nonce));
}

Handshake Server(const SessionScope& scope = Scope(), uint8_t nonce = 20) {
  return Handshake::Server(scope, kServer, NonceOf(nonce));
}

std::string Text(const Mac& mac) {
  return std::string(reinterpret_cast<const char*>(mac.data()), mac.size());
}

// What went over the wire, and how it ended.
struct Meeting {
  std::string hello, reply, finish;
  absl::Status at_client, at_server;
  bool done = false;  // both ends trust each other
};

enum class Message { kNone, kHello, kReply, kFinish };

// Runs the handshake; somebody in between flips bits of one byte of one message.
Meeting Meet(Handshake* client, Handshake* server, Message tampered = Message::kNone,
             size_t byte = 0, char flip = 0) {
  const auto pass = [&](Message which, std::string message) {
    if (which == tampered) message[byte] = static_cast<char>(message[byte] ^ flip);
    return message;
  };
  Meeting meeting;
  meeting.hello = client->Begin();
  absl::StatusOr<std::string> reply = server->Receive(pass(Message::kHello, meeting.hello));
  meeting.at_server = reply.status();
  if (!reply.ok()) return meeting;
  meeting.reply = *reply;
  absl::StatusOr<std::string> finish = client->Receive(pass(Message::kReply, meeting.reply));
  meeting.at_client = finish.status();
  if (!finish.ok()) return meeting;
  meeting.finish = *finish;
  meeting.at_server = server->Receive(pass(Message::kFinish, meeting.finish)).status();
  meeting.done = meeting.at_server.ok() && client->done() && server->done();
  return meeting;
}

// RFC 7693 has vectors for no key; the others are those of Python's hashlib.blake2b.
TEST(Mac, IsTheOneOfTheStandard) {
  EXPECT_EQ(absl::BytesToHexString(Text(ComputeMac("", "abc"))),
            "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  EXPECT_EQ(absl::BytesToHexString(Text(ComputeMac("Jefe", "what do ya want for nothing?"))),
            "44a4b7e70bb4dcf7416a764ddbc4485238283605dd7781dc1ea7e1ce22707834");
  EXPECT_EQ(
      absl::BytesToHexString(Text(ComputeMac(std::string(64, '\xaa'), std::string(500, '\xdd')))),
      "beaffcb052d574ea2c8630b79d292fed40ffe46cf9520fa3bdf5d379eb81d33d");
}

TEST(Mac, TakesALongKeyByItsHash) {
  EXPECT_EQ(absl::BytesToHexString(Text(ComputeMac(std::string(65, 'k'), "Hi There"))),
            "6ce8fe7bb30823785b5632872905e52316693d6f0e98e63e24ec34b1d254c23d");
}

TEST(Mac, EqualMeansEveryBitAndTheLength) {
  const Mac mac = ComputeMac("k", "m");
  const std::string text = Text(mac);
  EXPECT_TRUE(EqualMacs(mac, text));
  EXPECT_FALSE(EqualMacs(mac, ""));
  EXPECT_FALSE(EqualMacs(mac, text.substr(0, 31)));
  EXPECT_FALSE(EqualMacs(mac, text + '\0'));
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string other = text;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
    ASSERT_FALSE(EqualMacs(mac, other)) << bit;
  }
}

TEST(Handshake, BothEndsTrustEachOtherAndShareTheirKeys) {
  Handshake client = Client();
  Handshake server = Server();
  EXPECT_EQ(server.Begin(), "");
  EXPECT_EQ(client.expected_bytes(), Handshake::kReplyBytes);
  EXPECT_EQ(server.expected_bytes(), Handshake::kHelloBytes);
  const Meeting meeting = Meet(&client, &server);
  ASSERT_TRUE(meeting.done) << meeting.at_client << meeting.at_server;
  EXPECT_EQ(meeting.hello.size(), Handshake::kHelloBytes);
  EXPECT_EQ(meeting.reply.size(), Handshake::kReplyBytes);
  EXPECT_EQ(meeting.finish.size(), Handshake::kFinishBytes);
  EXPECT_LE(meeting.hello.size() + meeting.finish.size(), kHandshakeBytesMax);
  EXPECT_EQ(server.peer(), kClient);
  EXPECT_EQ(client.peer(), kServer);
  EXPECT_EQ(client.keys().send, server.keys().receive);
  EXPECT_EQ(client.keys().receive, server.keys().send);
  EXPECT_NE(client.keys().send, client.keys().receive) << "a frame can't be reflected";
}

TEST(Handshake, WorksWithoutASecretWhereTheKernelVouches) {
  SessionScope scope = Scope();
  scope.secret = Secret();
  Handshake client = Client(scope);
  Handshake server = Server(scope);
  ASSERT_TRUE(Meet(&client, &server).done);
  EXPECT_EQ(client.keys().send, server.keys().receive);
}

TEST(Handshake, KeysBelongToOneSession) {
  const auto keys_of = [](const SessionScope& scope, Rank self, Rank peer, uint8_t client_nonce,
                          uint8_t server_nonce) {
    Handshake client = Handshake::Client(scope, self, peer, NonceOf(client_nonce));
    Handshake server = Handshake::Server(scope, peer, NonceOf(server_nonce));
    EXPECT_TRUE(Meet(&client, &server).done);
    return std::vector<SessionKey>{client.keys().send, client.keys().receive};
  };
  SessionScope secret = Scope(), job = Scope(), membership = Scope();
  secret.secret = "another one";
  job.job += "!";
  membership.membership += 1;
  std::vector<SessionKey> all;
  for (const auto& keys : {keys_of(Scope(), 3, 1, 10, 20), keys_of(Scope(), 3, 1, 11, 20),
                           keys_of(Scope(), 3, 1, 10, 21), keys_of(Scope(), 1, 3, 10, 20),
                           keys_of(Scope(), 2, 1, 10, 20), keys_of(secret, 3, 1, 10, 20),
                           keys_of(job, 3, 1, 10, 20), keys_of(membership, 3, 1, 10, 20)}) {
    all.insert(all.end(), keys.begin(), keys.end());
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " and " << j;
  }
}

// The job's name has a length in the transcript: what is cut off it can't be put elsewhere.
TEST(Handshake, RefusesAnotherSecretAndAnotherJob) {
  SessionScope secret = Scope(), shorter = Scope(), job = Scope();
  secret.secret = "another secret";
  shorter.secret = Scope().secret.bytes().substr(1);
  job.job = "job/contexts";
  for (const SessionScope& other : {secret, shorter, job}) {
    Handshake client = Client();
    Handshake server = Server(other);
    const Meeting meeting = Meet(&client, &server);
    EXPECT_TRUE(absl::IsUnauthenticated(meeting.at_client)) << meeting.at_client;
    EXPECT_FALSE(client.done());
    EXPECT_FALSE(server.done());
  }
}

// A client without the secret gets as far as its proof.
TEST(Handshake, RefusesAClientThatOnlyPretends) {
  Handshake client = Client();
  Handshake server = Server();
  ASSERT_TRUE(server.Receive(client.Begin()).ok());
  const absl::Status status = server.Receive(std::string(Handshake::kFinishBytes, 'x')).status();
  EXPECT_TRUE(absl::IsUnauthenticated(status)) << status;
  EXPECT_FALSE(server.done());
}

TEST(Handshake, RefusesAnotherMembershipByItsNumber) {
  SessionScope older = Scope();
  older.membership = 6;
  Handshake client = Client(older);
  Handshake server = Server();
  const Meeting meeting = Meet(&client, &server);
  EXPECT_TRUE(absl::IsFailedPrecondition(meeting.at_server)) << meeting.at_server;
  EXPECT_NE(std::string(meeting.at_server.message()).find("in membership 6, this is membership 7"),
            std::string::npos);
}

TEST(Handshake, RefusesOneThatLooksForAnotherRank) {
  Handshake client = Handshake::Client(Scope(), kClient, kServer + 1, NonceOf(1));
  Handshake server = Server();
  const Meeting meeting = Meet(&client, &server);
  EXPECT_TRUE(absl::IsFailedPrecondition(meeting.at_server)) << meeting.at_server;
}

TEST(Handshake, RefusesRanksThatCannotBe) {
  for (const Rank rank : {-1, kRanksMax, INT32_MAX, INT32_MIN}) {
    Handshake client = Handshake::Client(Scope(), rank, kServer, NonceOf(1));
    Handshake server = Server();
    EXPECT_FALSE(Meet(&client, &server).at_server.ok()) << rank;
  }
}

TEST(Handshake, RefusesEveryFlippedBit) {
  const std::pair<Message, size_t> kMessages[] = {{Message::kHello, Handshake::kHelloBytes},
                                                  {Message::kReply, Handshake::kReplyBytes},
                                                  {Message::kFinish, Handshake::kFinishBytes}};
  for (const auto& [message, bytes] : kMessages) {
    for (size_t bit = 0; bit < 8 * bytes; ++bit) {
      Handshake client = Client();
      Handshake server = Server();
      const char flip = static_cast<char>(1 << bit % 8);
      ASSERT_FALSE(Meet(&client, &server, message, bit / 8, flip).done)
          << "message " << static_cast<int>(message) << ", bit " << bit;
      ASSERT_FALSE(server.done());
    }
  }
}

TEST(Handshake, RefusesAReplayedSession) {
  Handshake client = Client();
  Handshake server = Server();
  const Meeting meeting = Meet(&client, &server);
  ASSERT_TRUE(meeting.done);
  Handshake later = Server(Scope(), 21);
  ASSERT_TRUE(later.Receive(meeting.hello).ok()) << "anybody may say hello";
  EXPECT_FALSE(later.Receive(meeting.finish).ok());
  Handshake newer = Client(Scope(), 11);
  EXPECT_FALSE(newer.Receive(meeting.reply).ok());
}

TEST(Handshake, RefusesItsOwnProofFromTheOtherEnd) {
  Handshake client = Client();
  Handshake server = Server();
  const absl::StatusOr<std::string> reply = server.Receive(client.Begin());
  ASSERT_TRUE(reply.ok());
  EXPECT_FALSE(server.Receive(reply->substr(reply->size() - kMacBytes)).ok());
}

// Rank 1's proof that it is the client must not serve somebody who plays the server to rank 3.
TEST(Handshake, RefusesProofsWithSwappedRoles) {
  Handshake client = Handshake::Client(Scope(), 3, 1, NonceOf(10));
  Handshake other = Handshake::Client(Scope(), 1, 3, NonceOf(20));
  Handshake server_of_3 = Handshake::Server(Scope(), 3, NonceOf(10));
  const absl::StatusOr<std::string> reply = server_of_3.Receive(other.Begin());
  ASSERT_TRUE(reply.ok());
  const absl::StatusOr<std::string> proof = other.Receive(*reply);
  ASSERT_TRUE(proof.ok());
  std::string forged = reply->substr(0, 8);
  forged.append(reinterpret_cast<const char*>(NonceOf(20).data()), kNonceBytes);
  client.Begin();
  EXPECT_FALSE(client.Receive(forged + *proof).ok());
}

}  // namespace
}  // namespace rueda
