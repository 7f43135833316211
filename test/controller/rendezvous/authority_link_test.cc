// A process and the launcher over their socket. There is one link a process, so that each test has
// a process of its own; the launcher's answers come from a thread of it.
#include "controller/rendezvous/authority_link.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/base/datagram.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

constexpr unsigned kSecondsMax = 60;

// Runs the body in a child, whose failures are the test's.
void InAProcess(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(kSecondsMax);  // one that waits for ever fails
    body();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

wire::ToProcess Record(uint64_t membership) {
  wire::ToProcess message;
  wire::Record& record = *message.mutable_record();
  record.set_membership(membership);
  for (const int32_t slot : {4, 0, 8'191}) record.add_slots(slot);
  for (const int32_t host : {0, 0, 1}) record.add_hosts(host);
  record.set_rank(2);
  record.set_survivors(2);
  record.set_source(1);
  record.set_meeting_address("10.0.0.1:29400");
  return message;
}
wire::ToProcess Change(bool added, const std::vector<int32_t>& leaving) {
  wire::ToProcess message;
  message.mutable_change()->set_added(added);
  for (const int32_t slot : leaving) message.mutable_change()->add_leaving(slot);
  return message;
}
wire::ToProcess Dismissal(const std::string& why) {
  wire::ToProcess message;
  message.set_dismissal(why);
  return message;
}

// Its end of the socket.
class Launcher {
 public:
  Launcher() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    end_.reset(ends[0]);
    inherited_.reset(ends[1]);
    link_ = *AuthorityLink::Of(inherited_.get());
  }
  AuthorityLink* link() const { return link_; }
  int inherited() const { return inherited_.get(); }
  const wire::Ask& asked() const { return said_.ask(); }
  const wire::FromProcess& said() const { return said_; }
  const UniqueFd& memory() const { return memory_; }

  void Say(const std::string& bytes) const {
    EXPECT_EQ(send(end_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void Say(const wire::ToProcess& message) const { Say(message.SerializeAsString()); }
  void Close() { end_.reset(); }

  // What the process gets that asks, when the launcher does this once it has heard the question.
  absl::StatusOr<wire::Record> AskAnd(const std::function<void()>& answer, uint64_t commits = 0,
                                      int32_t blames = -1) {
    std::thread launcher([&] {
      Hear();
      EXPECT_TRUE(said_.has_ask());
      answer();
    });
    absl::StatusOr<wire::Record> record = link_->Ask(commits, blames);
    launcher.join();
    return record;
  }
  // The next word, and the memory that came along.
  void Hear() {
    const absl::StatusOr<std::string> bytes = ReceiveDatagram(end_.get(), 1'024, &memory_, 0);
    EXPECT_TRUE(bytes.ok() && said_.ParseFromString(*bytes));
  }
  // What the process gets that fetches a part, when the launcher does this.
  absl::StatusOr<AuthorityLink::Kept> FetchAnd(const wire::KeptPart& wanted,
                                               const std::function<void()>& answer) {
    std::thread launcher([&] {
      Hear();
      EXPECT_TRUE(said_.has_fetch());
      answer();
    });
    absl::StatusOr<AuthorityLink::Kept> kept = link_->Fetch(wanted);
    launcher.join();
    return kept;
  }
  void SayWith(const wire::ToProcess& message, int memory) const {
    EXPECT_TRUE(SendDatagram(end_.get(), message.SerializeAsString(), memory, 0).ok());
  }
  absl::StatusOr<wire::Record> AskAndSay(const std::vector<wire::ToProcess>& answers) {
    return AskAnd([&] {
      for (const wire::ToProcess& answer : answers) Say(answer);
    });
  }
  // In a word: what is due.
  std::string Due() const {
    const AuthorityLink::Due due = link_->due();
    std::string text = due.added ? "added " : "";
    if (due.dismissed) text += "dismissed ";
    if (!due.leaving.empty()) text += "leaving " + absl::StrJoin(due.leaving, " ");
    EXPECT_EQ(due.removed(), due.dismissed || !due.leaving.empty());
    return text;
  }

 private:
  UniqueFd end_;
  UniqueFd inherited_;
  AuthorityLink* link_ = nullptr;
  wire::FromProcess said_;
  UniqueFd memory_;
};

TEST(AuthorityLink, WhoAsksGetsTheRecord) {
  InAProcess([] {
    Launcher launcher;
    EXPECT_EQ(launcher.link()->last().membership(), 0u);
    const auto record = launcher.AskAnd([&] { launcher.Say(Record(1)); }, 7, 3);
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(record->SerializeAsString(), Record(1).record().SerializeAsString());
    EXPECT_EQ(launcher.link()->last().SerializeAsString(), record->SerializeAsString());
    EXPECT_EQ(launcher.asked().membership(), 0u);
    EXPECT_EQ(launcher.asked().commits(), 7u);
    EXPECT_EQ(launcher.asked().blames(), 3);
    const auto next = launcher.AskAndSay({Record(9)});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->membership(), 9u);
    EXPECT_EQ(launcher.asked().membership(), 1u);
    EXPECT_EQ(launcher.asked().commits(), 0u);
    EXPECT_EQ(launcher.asked().blames(), -1);
  });
}

TEST(AuthorityLink, ARecordThatIsNotNewIsPassedOver) {
  InAProcess([] {
    Launcher launcher;
    ASSERT_TRUE(launcher.AskAndSay({Record(3)}).ok());
    const auto record = launcher.AskAndSay({Record(3), Record(2), Record(4)});
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(record->membership(), 4u);
    EXPECT_EQ(launcher.link()->last().membership(), 4u);
  });
}

// It came to a question whose asker has given up.
TEST(AuthorityLink, ARecordThatCameBeforeTheQuestionIsNoAnswer) {
  InAProcess([] {
    Launcher launcher;
    launcher.Say(Record(5));
    const auto record = launcher.AskAndSay({Record(6)});
    ASSERT_TRUE(record.ok()) << record.status();
    EXPECT_EQ(record->membership(), 6u);
    launcher.Say(Record(7));
    EXPECT_EQ(launcher.Due(), "");
    EXPECT_EQ(launcher.link()->last().membership(), 6u) << "nobody has asked for it";
  });
}

TEST(AuthorityLink, ChangesAddUpUntilTheNextRecord) {
  InAProcess([] {
    Launcher launcher;
    ASSERT_TRUE(launcher.AskAndSay({Record(1)}).ok());
    EXPECT_EQ(launcher.Due(), "");
    launcher.Say(Change(true, {}));
    EXPECT_EQ(launcher.Due(), "added ");
    EXPECT_EQ(launcher.Due(), "added ") << "still";
    launcher.Say(Change(false, {1}));
    launcher.Say(Change(false, {1, 3}));
    launcher.Say(Change(false, {}));
    EXPECT_EQ(launcher.Due(), "added leaving 1 3");
    launcher.Say(Change(true, {}));  // nobody has looked at it
    ASSERT_TRUE(launcher.AskAndSay({Change(true, {2}), Record(2)}).ok());
    EXPECT_EQ(launcher.Due(), "");
    ASSERT_TRUE(launcher.AskAndSay({Record(3), Change(true, {})}).ok());
    EXPECT_EQ(launcher.Due(), "added ") << "it is of the new one";
  });
}

TEST(AuthorityLink, ADismissalIsCancelledAndSaysWhy) {
  InAProcess([] {
    Launcher launcher;
    ASSERT_TRUE(launcher.AskAndSay({Record(1)}).ok());
    const absl::Status status = launcher.AskAndSay({Dismissal("there are enough")}).status();
    EXPECT_EQ(status, absl::CancelledError("there are enough"));
    launcher.Say(Dismissal("the host is taken away"));
    EXPECT_EQ(launcher.Due(), "dismissed ") << "whoever does not ask ends at the next commit";
  });
}

TEST(AuthorityLink, ALauncherThatIsGoneIsUnavailable) {
  InAProcess([] {
    Launcher launcher;
    ASSERT_TRUE(launcher.AskAndSay({Record(1)}).ok());
    const absl::Status meanwhile = launcher.AskAnd([&] { launcher.Close(); }).status();
    EXPECT_TRUE(absl::IsUnavailable(meanwhile)) << meanwhile;
    EXPECT_THAT(std::string(meanwhile.message()), HasSubstr("ruedarun has gone"));
    const absl::Status before = launcher.link()->Ask(0, -1).status();
    EXPECT_TRUE(absl::IsUnavailable(before)) << before;
    EXPECT_EQ(launcher.Due(), "");
    EXPECT_EQ(launcher.link()->last().membership(), 1u);
  });
}

TEST(AuthorityLink, PassesOnWhatIsKeptWithItsMemory) {
  InAProcess([] {
    Launcher launcher;
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    wire::KeptPart part;
    part.set_name("none has it yet");
    launcher.link()->Keep(part, ends[0]);
    ASSERT_TRUE(launcher.AskAndSay({Record(7)}).ok()) << "the question is the first that it hears";
    part.set_name("a");
    launcher.link()->Keep(part, ends[0]);
    launcher.Hear();
    EXPECT_EQ(launcher.said().keep().name(), "a");
    EXPECT_TRUE(launcher.memory().valid());
    launcher.Close();
    launcher.link()->Keep(part, ends[0]);  // nobody hears of it
  });
}

TEST(AuthorityLink, FetchesWhatIsKept) {
  InAProcess([] {
    Launcher launcher;
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    wire::ToProcess answer;
    answer.mutable_kept()->set_name("a");
    answer.mutable_kept()->set_bytes(12);
    const auto kept = launcher.FetchAnd(answer.kept(), [&] {
      EXPECT_EQ(launcher.said().fetch().name(), "a");
      launcher.Say(Change(true, {}));  // what comes meanwhile is not lost
      wire::ToProcess other = answer;
      other.mutable_kept()->set_name("another");
      launcher.SayWith(other, ends[0]);  // to a question that nobody waits for any more
      launcher.SayWith(answer, ends[0]);
    });
    ASSERT_TRUE(kept.ok()) << kept.status();
    EXPECT_EQ(kept->part.bytes(), 12u);
    EXPECT_TRUE(kept->memory.valid());
    EXPECT_EQ(launcher.Due(), "added ");
    const auto none = launcher.FetchAnd(answer.kept(), [&] { launcher.Say(answer); });
    EXPECT_TRUE(absl::IsNotFound(none.status())) << none.status();
    const auto gone = launcher.FetchAnd(answer.kept(), [&] { launcher.Close(); });
    EXPECT_TRUE(absl::IsUnavailable(gone.status())) << gone.status();
  });
}

TEST(AuthorityLink, KnowsUntilWhenOthersAreToBeWaitedFor) {
  InAProcess([] {
    Launcher launcher;
    wire::ToProcess record = Record(1);
    record.mutable_record()->set_keeping(2);
    ASSERT_TRUE(launcher.AskAndSay({record}).ok());
    EXPECT_EQ(launcher.Due(), "");
    EXPECT_EQ(launcher.link()->due().keeping, 2);
    wire::ToProcess nothing;
    nothing.mutable_nothing_kept();
    launcher.Say(nothing);
    EXPECT_EQ(launcher.Due(), "") << "that is no change";
    EXPECT_EQ(launcher.link()->due().keeping, 0);
  });
}

TEST(AuthorityLink, RefusesNonsense) {
  InAProcess([] {
    Launcher launcher;
    const auto told = [&](const std::string& bytes) {
      return launcher.AskAnd([&] { launcher.Say(bytes); }).status();
    };
    EXPECT_TRUE(absl::IsInvalidArgument(told("\xff\xff\xff")));
    // A record that is longer than what is around it.
    EXPECT_TRUE(absl::IsInvalidArgument(told("\x0a\xff\xff\xff\x12x")));
    wire::ToProcess bad = Record(1);
    bad.mutable_record()->set_rank(3);
    EXPECT_TRUE(absl::IsDataLoss(told(bad.SerializeAsString())));
    // One that is exactly as long as they may be is taken, and one that is longer is not cut.
    for (const size_t more : {size_t{0}, size_t{1}}) {
      std::string why(kElasticBytesMax - 4 + more, 'x');
      const std::string message = Dismissal(why).SerializeAsString();
      ASSERT_EQ(message.size(), kElasticBytesMax + more);
      const absl::Status status = told(message);
      EXPECT_EQ(status.code(),
                more == 0 ? absl::StatusCode::kCancelled : absl::StatusCode::kDataLoss);
    }
    // Whoever asks again gets an answer.
    EXPECT_TRUE(launcher.AskAndSay({Record(1)}).ok());
    EXPECT_EQ(launcher.link()->last().membership(), 1u);
  });
}

TEST(AuthorityLink, IsMadeOnceForAProcess) {
  InAProcess([] {
    Launcher launcher;
    EXPECT_EQ(*AuthorityLink::Of(launcher.inherited()), launcher.link());
    EXPECT_EQ(*AuthorityLink::Of(-1), launcher.link());
    EXPECT_NE(fcntl(launcher.inherited(), F_GETFD) & FD_CLOEXEC, 0);
    // A child of a process of the job is none.
    InAProcess([&] {
      const absl::Status status = AuthorityLink::Of(launcher.inherited()).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    });
    EXPECT_TRUE(launcher.AskAndSay({Record(1)}).ok()) << "the child has taken nothing away";
  });
}

TEST(AuthorityLink, IsNotMadeOfAnotherDescriptor) {
  InAProcess([] {
    int stream[2], ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, stream), 0);
    ASSERT_EQ(pipe(ends), 0);
    for (const int fd : {-1, 9'999, stream[0], ends[0]}) {
      const absl::Status status = AuthorityLink::Of(fd).status();
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("RUEDA_ELASTIC_FD="));
    }
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, stream), 0);
    EXPECT_TRUE(AuthorityLink::Of(stream[0]).ok()) << "the first that is one";
    EXPECT_NE(fcntl(stream[0], F_GETFD) & FD_CLOEXEC, 0);
  });
}

TEST(CheckRecord, TakesOneThatCanBeFollowed) {
  EXPECT_TRUE(CheckRecord(Record(1).record()).ok());
  wire::Record alone;  // the first membership has no survivors
  alone.set_membership(1);
  alone.add_slots(0);
  alone.add_hosts(0);
  EXPECT_TRUE(CheckRecord(alone).ok());
  alone.set_survivors(1);
  EXPECT_TRUE(CheckRecord(alone).ok());
}

TEST(CheckRecord, RefusesWhatCanNot) {
  const std::pair<const char*, std::function<void(wire::Record*)>> kCases[] = {
      {"number", [](wire::Record* r) { r->set_membership(0); }},
      {"nobody", [](wire::Record* r) { r->clear_slots(), r->clear_hosts(); }},
      {"hosts missing", [](wire::Record* r) { r->mutable_hosts()->RemoveLast(); }},
      {"slots missing", [](wire::Record* r) { r->mutable_slots()->RemoveLast(); }},
      {"slot -1", [](wire::Record* r) { r->set_slots(1, -1); }},
      {"slot 8192", [](wire::Record* r) { r->set_slots(0, kElasticProcessesMax); }},
      {"host -1", [](wire::Record* r) { r->set_hosts(2, -1); }},
      {"host 8192", [](wire::Record* r) { r->set_hosts(2, kElasticProcessesMax); }},
      {"rank -1", [](wire::Record* r) { r->set_rank(-1); }},
      {"rank 3", [](wire::Record* r) { r->set_rank(3); }},
      {"survivors -1", [](wire::Record* r) { r->set_survivors(-1); }},
      {"survivors 4", [](wire::Record* r) { r->set_survivors(4); }},
      {"source -1", [](wire::Record* r) { r->set_source(-1); }},
      {"keeping -1", [](wire::Record* r) { r->set_keeping(-1); }},
      {"a source that is new", [](wire::Record* r) { r->set_source(2); }},
      {"a source where nobody was before",
       [](wire::Record* r) {
         r->set_survivors(0);
         r->set_source(1);
       }},
  };
  for (const auto& [what, change] : kCases) {
    wire::Record record = Record(1).record();
    change(&record);
    EXPECT_TRUE(absl::IsDataLoss(CheckRecord(record))) << what;
  }
}

TEST(AuthorityLink, ALookAtWhatIsDueTakesNoAnswerAway) {
  InAProcess([] {
    Launcher launcher;
    std::atomic<bool> done = false;
    std::thread looker([&] {  // another thread of the process, at its commits
      while (!done) (void)launcher.link()->due();
    });
    for (uint64_t number = 1; number <= 100; ++number) {
      const auto record = launcher.AskAndSay({Record(number)});
      EXPECT_TRUE(record.ok()) << record.status();
    }
    done = true;
    looker.join();
  });
}

}  // namespace
}  // namespace rueda
