// What stands at the other end of a remote shell may say anything.
#include "controller/launcher/agent/agent_words.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <limits>
#include <string>
#include <vector>

#include "core/base/limits.h"

namespace rueda {
namespace {

constexpr HostShare kShare = {8, 2, 3, 1, 2};  // ranks 2, 3, 4 of 8

launch::FromAgent EventOf(MessageKind kind, int rank = -1, int value = 0) {
  launch::FromAgent message;
  Message event = {kind};
  event.rank = rank;
  event.value = value;
  *message.mutable_event() = ToWire(event);
  return message;
}

bool MaySay(const launch::FromAgent& message) {
  launch::FromAgent read;
  return ReadFromAgent(message.SerializeAsString(), kShare, &read).ok();
}

// As it is read.
launch::FromAgent Read(const launch::FromAgent& message) {
  launch::FromAgent read;
  EXPECT_TRUE(ReadFromAgent(message.SerializeAsString(), kShare, &read).ok());
  return read;
}

bool MayBeTold(const launch::ToAgent& message, const HostShare* share) {
  launch::ToAgent read;
  return ReadToAgent(message.SerializeAsString(), share, &read).ok();
}

TEST(FromAgent, TellsOfItsOwnRanks) {
  for (const MessageKind kind :
       {MessageKind::kRankStarted, MessageKind::kStartFailed, MessageKind::kPinFailed,
        MessageKind::kExecFailed, MessageKind::kRankEnded, MessageKind::kKeeps,
        MessageKind::kRankDies}) {
    for (int rank = -3; rank < 12; ++rank) {
      EXPECT_EQ(MaySay(EventOf(kind, rank)), rank >= 2 && rank <= 4) << rank;
    }
    EXPECT_FALSE(MaySay(EventOf(kind, std::numeric_limits<int>::min())));
    EXPECT_FALSE(MaySay(EventOf(kind, std::numeric_limits<int>::max())));
  }
  launch::FromAgent output;
  for (int rank = -1; rank < 8; ++rank) {
    output.mutable_output()->set_rank(rank);
    EXPECT_EQ(MaySay(output), rank >= 2 && rank <= 4);
  }
}

TEST(FromAgent, TellsOfEventsThatThereAre) {
  EXPECT_TRUE(MaySay(EventOf(MessageKind::kFinished)));
  EXPECT_FALSE(MaySay(EventOf(MessageKind::kFinished, -1, 256)));  // would end as 0
  EXPECT_TRUE(MaySay(EventOf(MessageKind::kHere)));
  for (const int kind : {-1, 12, 1'000}) {
    EXPECT_FALSE(MaySay(EventOf(static_cast<MessageKind>(kind), 2))) << kind;
  }
  for (const MessageKind kind :
       {MessageKind::kEndJob, MessageKind::kVerdict, MessageKind::kLost, MessageKind::kAsk}) {
    EXPECT_FALSE(MaySay(EventOf(kind, 2)));
  }
  EXPECT_TRUE(MaySay(EventOf(MessageKind::kSignal, -1, SIGTERM)));
  for (const int signal : {-1, 0, SIGKILL, SIGUSR1, 1'000}) {
    EXPECT_FALSE(MaySay(EventOf(MessageKind::kSignal, -1, signal))) << signal;
  }
  launch::FromAgent blames = EventOf(MessageKind::kRankEnded, 2);
  blames.mutable_event()->set_blames(kRanksMax);
  EXPECT_FALSE(MaySay(blames));
  EXPECT_FALSE(MaySay({}));
}

TEST(FromAgent, SaysNothingThatATerminalWouldObey) {
  launch::FromAgent message;
  message.mutable_refusal()->set_why("no \x1b[2Jsuch " + std::string(1 << 20, 'x'));
  EXPECT_EQ(Read(message).refusal().why().substr(0, 11), "no ?[2Jsuch");
  EXPECT_LE(Read(message).refusal().why().size(), kErrorTextBytesMax);
  message.mutable_refusal()->set_exit_code(256);
  EXPECT_FALSE(MaySay(message));
  message.set_loss("\x1b]0;");
  EXPECT_EQ(Read(message).loss(), "?]0;");
  message.mutable_hello()->set_version("\x07");
  EXPECT_EQ(Read(message).hello().version(), "?");
  message.mutable_hello()->set_host_id(std::string(1'000, 'x'));
  EXPECT_FALSE(MaySay(message));
}

TEST(FromAgent, NamesAMeetingPointThatIsOne) {
  launch::FromAgent message;
  launch::Meeting& meeting = *message.mutable_ready()->mutable_meeting();
  EXPECT_TRUE(MaySay(message));  // of other hosts than rank 0's
  meeting.set_address("[fe80::1%eth0]:29400");
  meeting.set_master_address("10.0.0.1");
  meeting.set_master_port(65'535);
  EXPECT_TRUE(MaySay(message));
  const std::vector<std::string> wrong = {"10.0.0.1:1 --x", "a\nb", "$(reboot)", "'",
                                          std::string("a\0b", 3)};
  for (const std::string& address : wrong) {
    launch::FromAgent other = message;
    other.mutable_ready()->mutable_meeting()->set_address(address);
    EXPECT_FALSE(MaySay(other)) << address;
  }
  meeting.set_master_port(65'536);
  EXPECT_FALSE(MaySay(message));
}

TEST(FromAgent, IsRefusedWhenALengthInItIsFalse) {
  launch::FromAgent message, read;
  message.mutable_hello()->set_version("ruedarun");
  const std::string bytes = message.SerializeAsString();
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string lie = bytes.substr(0, i) + "\xFF\xFF\xFF\x12" + bytes.substr(i);  // 40 MB
    (void)ReadFromAgent(lie, kShare, &read);
    EXPECT_LT(read.hello().version().capacity(), 10'000u) << i;
  }
  EXPECT_FALSE(ReadFromAgent("\x0a\xff\x01x", kShare, &read).ok());
}

TEST(ToAgent, BeginsWithAnOrderThatCanBeCarriedOut) {
  launch::ToAgent message;
  launch::Order& order = *message.mutable_order();
  order.set_size(8);
  order.set_first_rank(2);
  order.set_ranks(3);
  order.set_host(1);
  order.set_hosts(2);
  order.add_command("true");
  EXPECT_TRUE(MayBeTold(message, nullptr));
  EXPECT_FALSE(MayBeTold(message, &kShare));  // a second one
  for (const double grace :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    launch::ToAgent other = message;
    other.mutable_order()->set_grace_seconds(grace);
    EXPECT_FALSE(MayBeTold(other, nullptr)) << grace;
  }
  order.set_first_rank(6);
  EXPECT_FALSE(MayBeTold(message, nullptr));
}

TEST(ToAgent, GoesOnWithEventsThatThereAre) {
  EXPECT_FALSE(MayBeTold({}, &kShare));
  const auto may_say = [&](MessageKind kind, int rank, int value,
                           const HostShare* share = &kShare) {
    launch::ToAgent message;
    *message.mutable_event() = EventOf(kind, rank, value).event();
    return MayBeTold(message, share);
  };
  EXPECT_TRUE(may_say(MessageKind::kSignal, -1, SIGUSR1));
  EXPECT_FALSE(may_say(MessageKind::kSignal, -1, SIGUSR1, nullptr));
  EXPECT_FALSE(may_say(MessageKind::kSignal, -1, 65));
  EXPECT_TRUE(may_say(MessageKind::kVerdict, 7, 0));
  EXPECT_FALSE(may_say(MessageKind::kVerdict, 8, 0));
  EXPECT_TRUE(may_say(MessageKind::kEndJob, -1, 0));
  EXPECT_TRUE(may_say(MessageKind::kAsk, -1, 0));
  EXPECT_FALSE(may_say(MessageKind::kRankEnded, 2, 0));
}

}  // namespace
}  // namespace rueda
