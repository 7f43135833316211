// One rank's engine, turned by hand: the job of one rank, with real memory, bells and backends.
#include "controller/runtime/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "controller/bus/host_log.h"
#include "controller/runtime/engine_parts.h"
#include "ops/host/arena.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() : submissions_(0, 1) {
    config_.agent_fd = board_->fd();
    EngineArgs args;
    World& world = args.world;
    world.job = "engine_test";
    world.topology = MakeTopology({"host"});
    world.infos = {{getpid(), "host"}};
    world.log_ranks = {0};
    world.network_interface = "lo";
    absl::StatusOr<std::shared_ptr<Arena>> arena = Arena::Create(size_t{1} << 26);
    EXPECT_TRUE(arena.ok()) << arena.status();
    absl::StatusOr<std::unique_ptr<Segment>> segment =
        Segment::Create(1, LogLayout::For(1).bytes());
    EXPECT_TRUE(segment.ok()) << segment.status();
    world.neighbourhood.segment = *std::move(segment);
    world.neighbourhood.arenas = {(*arena)->memory()};
    Bells bells;
    bells.background = *Doorbell::Create();
    bells.waiter = *Doorbell::Create();
    world.neighbourhood.bells.push_back(std::move(bells));
    args.config = &config_;
    args.arena = *arena;
    args.submissions = &submissions_;
    args.completions = &completions_;
    args.sleepers = &sleepers_;
    args.waiting_threads = &waiting_threads_;
    args.timeline = &timeline_;
    absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(std::move(args));
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    engine_->Refresh();
  }

  // A barrier, with a reference of the caller's.
  Request* Submit() {
    OperationArgs args;
    args.waited = true;
    const absl::StatusOr<Submitted> submitted = submissions_.Submit(args);
    EXPECT_TRUE(submitted.ok()) << submitted.status();
    return submitted->request;
  }
  void TurnUntilFinished() {
    for (int turns = 0; !engine_->Finished() && turns < 1'000; ++turns) engine_->Turn();
    EXPECT_TRUE(engine_->Finished());
  }

  const std::unique_ptr<VerdictBoard> board_ = *VerdictBoard::Create(1);
  Config config_;
  Timeline timeline_;
  Submissions submissions_;
  Completions completions_;
  Sleepers sleepers_;
  WaitingThreads waiting_threads_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, ATurnWithoutWorkMovesNothing) {
  while (engine_->Turn()) {
  }
  EXPECT_FALSE(engine_->CollectWork());
  EXPECT_FALSE(engine_->LastTurn());
}

TEST_F(EngineTest, TurnsCompleteWhatWasSubmitted) {
  Request* const request = Submit();
  EXPECT_TRUE(engine_->CollectWork());
  for (int turns = 0; !request->is_done() && turns < 1'000; ++turns) engine_->Turn();
  EXPECT_TRUE(request->is_done());
  EXPECT_TRUE(request->status.ok()) << request->status;
  EXPECT_EQ(submissions_.in_flight(), 0);
  submissions_.table().Unreference(request);
}

TEST_F(EngineTest, LeavesInPeace) {
  engine_->RequestLeave();
  EXPECT_FALSE(engine_->Finished());
  TurnUntilFinished();
  EXPECT_EQ(engine_->failure(), nullptr);
  EXPECT_EQ(board_->BlamedBy(0), 0) << "the end of its process would be taken for a loss";
  EXPECT_FALSE(engine_->Turn()) << "there is nothing to do after the end";
}

TEST_F(EngineTest, AnAbortEndsWhatIsUnderWayAndEverythingLater) {
  Request* const request = Submit();
  engine_->RequestAbort("enough");
  engine_->RequestAbort("more than enough");
  EXPECT_EQ(board_->BlamedBy(0), -1);
  EXPECT_TRUE(engine_->Turn());
  EXPECT_TRUE(engine_->Finished());
  ASSERT_NE(engine_->failure(), nullptr);
  EXPECT_EQ(engine_->failure()->cause, "rank 0 aborted the job: enough");
  EXPECT_EQ(board_->BlamedBy(0), 0);
  EXPECT_TRUE(request->is_done());
  EXPECT_TRUE(absl::IsAborted(request->status)) << request->status;
  submissions_.table().Unreference(request);
  // And nothing moves any more.
  EXPECT_FALSE(engine_->Turn());
  EXPECT_FALSE(engine_->LastTurn());
  EXPECT_FALSE(engine_->CollectWork());
  EXPECT_EQ(engine_->CheckDeadlines(), kForever);
  EXPECT_TRUE(absl::IsAborted(submissions_.Submit(OperationArgs()).status()));
}

TEST_F(EngineTest, TheFailureIsReportedOnceAndNotByTheTurnThatEndsTheJob) {
  engine_->RequestAbort("enough");
  ::testing::internal::CaptureStderr();
  engine_->Turn();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  engine_->ReportFailure();
  engine_->ReportFailure();
  const std::string report = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(report, HasSubstr("rank 0 aborted the job: enough"));
  EXPECT_EQ(report.find("aborted"), report.rfind("aborted"));
}

// What a neighbour has written down ends this rank's part too.
TEST_F(EngineTest, ANeighboursRecordEndsTheJobHere) {
  Failure failure;
  failure.rank = 0;
  failure.accuser = 0;
  failure.cause = "killed";
  engine_->world().neighbourhood.segment->Fail(EncodeFailure(failure));
  engine_->Turn();
  EXPECT_TRUE(engine_->Finished());
  EXPECT_EQ(engine_->failure()->cause, "killed");
}

}  // namespace
}  // namespace rueda
