// The lane thread, over a pretended library of two members: what this member brings, the other one
// brings as well.
#include "ops/gloo/blocking_communicator.h"

#include <pthread.h>
#include <signal.h>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "ops/kernels/reduce.h"
#include "test/ops/backend/bucket_operations.h"
#include "test/ops/backend/memory_store.h"

namespace rueda {
namespace {

struct Call {
  std::string name;
  size_t size = 0;  // elements of an allreduce, else bytes
  size_t element_bytes = 0;
  uint32_t tag = 0;
};

// What the test tells the library to do, and what it saw.
class Library {
 public:
  // Calls of that name wait until Release, or, if they listen to it, until an abort.
  void Hold(const std::string& name, bool listens = true) {
    MutexLock lock(mutex_);
    held_ = name;
    listens_ = listens;
  }
  void Release() {
    MutexLock lock(mutex_);
    held_.clear();
    changed_.NotifyAll();
  }
  void FailWith(absl::StatusCode code, const std::string& words) {
    MutexLock lock(mutex_);
    code_ = static_cast<int32_t>(code);
    words_ = words;
  }
  void AwaitHeld() {
    MutexLock lock(mutex_);
    while (!holding_) changed_.Wait(mutex_);
  }
  void AwaitDestroyed() {
    MutexLock lock(mutex_);
    while (!destroyed_) changed_.Wait(mutex_);
  }
  void AwaitAborted() {
    MutexLock lock(mutex_);
    while (!aborted_) changed_.Wait(mutex_);
  }
  bool destroyed() {
    MutexLock lock(mutex_);
    return destroyed_;
  }
  // The number of the last call's end, in a count that the test joins in.
  int NextEvent() { return ++events_; }
  int last_end() const { return last_end_; }
  std::vector<Call> calls() {
    MutexLock lock(mutex_);
    return calls_;
  }
  std::vector<std::string> names() {
    std::vector<std::string> names;
    for (const Call& call : calls()) names.push_back(call.name);
    return names;
  }

  std::atomic<int32_t> silent_{-1};  // a member

  static const rueda_module kModule;
  static Library* created;  // the next one

 private:
  static Library* Of(rueda_module_communicator* communicator) {
    return reinterpret_cast<Library*>(communicator);
  }
  int32_t Enter(Call call, char* message) {
    MutexLock lock(mutex_);
    calls_.push_back(call);
    while (held_ == call.name && !(aborted_ && listens_)) {
      holding_ = true;
      changed_.NotifyAll();
      changed_.Wait(mutex_);
    }
    holding_ = false;
    last_end_ = NextEvent();
    if (aborted_) {
      snprintf(message, RUEDA_MODULE_MESSAGE_BYTES, "aborted");
      return static_cast<int32_t>(absl::StatusCode::kAborted);
    }
    snprintf(message, RUEDA_MODULE_MESSAGE_BYTES, "%s", words_.c_str());
    return code_;
  }

  Mutex mutex_;
  CondVar changed_;
  std::string held_;
  bool listens_ = true;
  bool holding_ = false;
  bool aborted_ = false;
  bool destroyed_ = false;
  int32_t code_ = 0;
  std::string words_;
  std::vector<Call> calls_;
  std::atomic<int> events_{0};
  std::atomic<int> last_end_{0};
};

Library* Library::created = nullptr;

const rueda_module Library::kModule = {
    sizeof(rueda_module),
    RUEDA_MODULE_ABI,
    "pretend",
    [](const rueda_module_group*, rueda_module_communicator** communicator, char*) -> int32_t {
      *communicator = reinterpret_cast<rueda_module_communicator*>(created);
      return 0;
    },
    [](rueda_module_communicator* communicator, int32_t peer, char* message) {
      return Of(communicator)->Enter({peer < 0 ? "connect" : "connect to one"}, message);
    },
    [](rueda_module_communicator* communicator, void* data, size_t count,
       const rueda_module_reduction* reduction, uint32_t tag, char* message) {
      const int32_t code =
          Of(communicator)->Enter({"allreduce", count, reduction->element_bytes, tag}, message);
      if (code == 0) reduction->reduce(reduction->user, data, data, data, count);
      return code;
    },
    [](rueda_module_communicator* communicator, void* data, const int64_t* bytes, uint32_t tag,
       char* message) {
      memset(static_cast<char*>(data) + bytes[0], 7, static_cast<size_t>(bytes[1]));
      return Of(communicator)
          ->Enter({"allgatherv", static_cast<size_t>(bytes[0] + bytes[1]), 1, tag}, message);
    },
    [](rueda_module_communicator* communicator, void* data, size_t bytes, int32_t root,
       uint32_t tag, char* message) {
      if (root == 1) memset(data, 9, bytes);
      return Of(communicator)->Enter({"broadcast", bytes, 1, tag}, message);
    },
    [](rueda_module_communicator* communicator, uint32_t tag, char* message) {
      sigset_t blocked;
      pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
      EXPECT_EQ(sigismember(&blocked, SIGPIPE), 1);
      EXPECT_EQ(sigismember(&blocked, SIGTERM), 1);
      return Of(communicator)->Enter({"barrier", 0, 0, tag}, message);
    },
    [](rueda_module_communicator* communicator, const rueda_module_transfer* sends,
       size_t send_count, const rueda_module_transfer* receives, size_t receive_count, uint32_t tag,
       char* message) {
      size_t bytes = 0;
      for (size_t i = 0; i < send_count; ++i) bytes += sends[i].bytes;
      for (size_t i = 0; i < receive_count; ++i) memset(receives[i].data, 5, receives[i].bytes);
      return Of(communicator)->Enter({"exchange", bytes, 1, tag}, message);
    },
    nullptr,  // buffers are others' business
    nullptr,
    nullptr,
    nullptr,
    nullptr,
    [](rueda_module_communicator* communicator, int64_t* silence, int32_t*) -> int32_t {
      *silence = 7 * kSecond;
      return Of(communicator)->silent_.load();
    },
    [](rueda_module_communicator* communicator) {
      Library* library = Of(communicator);
      MutexLock lock(library->mutex_);
      library->aborted_ = true;
      library->changed_.NotifyAll();
    },
    [](rueda_module_communicator* communicator) {
      Library* library = Of(communicator);
      MutexLock lock(library->mutex_);
      library->destroyed_ = true;
      library->changed_.NotifyAll();
    }};

class BlockingCommunicatorTest : public testing::Test {
 protected:
  BlockingCommunicatorTest() {
    Library::created = &library_;
    ModuleArgs args;
    args.module = &Library::kModule;
    args.members = 2;
    args.self = 0;
    args.prefix = "prefix";
    args.store = store_;
    args.timeout = kSecond;
    args.wake = [this] {
      MutexLock lock(mutex_);
      ++rings_;
      rung_.NotifyAll();
    };
    communicator_ = *BlockingCommunicator::Create(std::move(args));
  }

  // As the engine does: looks, and waits for the bell when there is nothing to do.
  absl::Status Finish() {
    while (true) {
      RUEDA_ASSIGN_OR_RETURN(const Progress progress, communicator_->Advance());
      if (progress == Progress::kDone) return absl::OkStatus();
      MutexLock lock(mutex_);
      while (rings_ == rings_seen_) rung_.Wait(mutex_);
      rings_seen_ = rings_;
    }
  }
  absl::Status Execute(const BucketOperation& operation) {
    communicator_->Start(operation);
    return Finish();
  }
  int rings() {
    MutexLock lock(mutex_);
    return rings_;
  }

  Library library_;
  std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  Mutex mutex_;
  CondVar rung_;
  int rings_ = 0;
  int rings_seen_ = 0;
  std::unique_ptr<Communicator> communicator_;
};

TEST_F(BlockingCommunicatorTest, ConnectsBehindTheFirstOperationAndOnce) {
  EXPECT_TRUE(library_.calls().empty());
  EXPECT_TRUE(Execute(BarrierOf()).ok());
  EXPECT_TRUE(Execute(BarrierOf()).ok());
  EXPECT_EQ(library_.names(), (std::vector<std::string>{"connect", "barrier", "barrier"}));
}

TEST_F(BlockingCommunicatorTest, AnOperationIsBlockedUntilItsEndWhichRingsOnce) {
  library_.Hold("barrier");
  communicator_->Start(BarrierOf());
  library_.AwaitHeld();
  EXPECT_EQ(*communicator_->Advance(), Progress::kBlocked);
  EXPECT_EQ(rings(), 0);
  library_.Release();
  EXPECT_TRUE(Finish().ok());
  EXPECT_EQ(rings(), 1);
}

TEST_F(BlockingCommunicatorTest, TellsWhoIsSilentWhileAnOperationWaits) {
  library_.Hold("barrier");
  communicator_->Start(BarrierOf());
  library_.AwaitHeld();
  EXPECT_FALSE(communicator_->silence_probe()->SilentMember().has_value());
  library_.silent_ = 1;
  const std::optional<Silence> silence = communicator_->silence_probe()->SilentMember();
  ASSERT_TRUE(silence.has_value());
  EXPECT_EQ(silence->member, 1);
  EXPECT_EQ(silence->time, 7 * kSecond);
  library_.Release();
  EXPECT_TRUE(Finish().ok());
}

TEST_F(BlockingCommunicatorTest, AnErrorIsPassedOnInTheLibrarysWords) {
  library_.FailWith(absl::StatusCode::kUnavailable, "the cable was cut");
  const absl::Status status = Execute(BarrierOf());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message(), "pretend: the cable was cut");
}

TEST_F(BlockingCommunicatorTest, WhatOnlyTimeToldIsUnavailable) {
  library_.FailWith(absl::StatusCode::kDeadlineExceeded, "nobody came");
  const absl::Status status = Execute(BarrierOf());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(status.message(), "pretend: nobody came");
}

TEST_F(BlockingCommunicatorTest, ALoneTensorIsReducedWhereItIs) {
  const std::vector<float> input = {1, 2, 3};
  std::vector<float> output(3);
  const Piece piece = {input.data(), output.data(), 3};
  BucketOperation operation = AllreduceOf({&piece, 1}, DType::kFloat32, ReduceOp::kAverage);
  operation.scaling.prescale = 2;
  operation.scaling.postscale = 5;
  operation.scaling.divisor = 2;
  ASSERT_TRUE(Execute(operation).ok());
  EXPECT_EQ(output, (std::vector<float>{10, 20, 30}));
  EXPECT_EQ(input, (std::vector<float>{1, 2, 3}));
}

TEST_F(BlockingCommunicatorTest, ABucketTravelsInChunksOfBoundedSize) {
  std::vector<float> first(5 << 20, 1), second(1 << 20, 2);
  std::vector<float> output(second.size());
  const Piece pieces[] = {
      {first.data(), first.data(), static_cast<int64_t>(first.size())},
      {nullptr, nullptr, 0},
      {second.data(), output.data(), static_cast<int64_t>(second.size())},
      {second.data(), nullptr, static_cast<int64_t>(second.size())},  // nobody wants it here
  };
  ASSERT_TRUE(Execute(AllreduceOf(pieces, DType::kFloat32)).ok());
  EXPECT_EQ(first, std::vector<float>(first.size(), 2));
  EXPECT_EQ(output, std::vector<float>(output.size(), 4));
  EXPECT_EQ(second, std::vector<float>(second.size(), 2));
  const std::vector<Call> calls = library_.calls();
  ASSERT_EQ(calls.size(), 3u);  // connect, and 7 Mi elements
  EXPECT_EQ(calls[1].size, 4u << 20);
  EXPECT_EQ(calls[2].size, 3u << 20);
  EXPECT_NE(calls[1].tag, calls[2].tag);
}

TEST_F(BlockingCommunicatorTest, HalfTypesTravelAsFloat32AndAreRoundedOnce) {
  // 1 + 2^-8 is no bfloat16; 2 * (1 + 2^-7) * 0.75 is not either, and is rounded at the end only.
  std::vector<float> wide = {1.0078125f, -3.0f};
  std::vector<uint16_t> narrow(2);
  kernels::FromFloat32(DType::kBFloat16, wide.data(), narrow.data(), 2);
  const Piece piece = {narrow.data(), narrow.data(), 2};
  BucketOperation operation = AllreduceOf({&piece, 1}, DType::kBFloat16);
  operation.scaling.prescale = 0.75;
  ASSERT_TRUE(Execute(operation).ok());
  EXPECT_EQ(library_.calls()[1].element_bytes, 4u);
  std::vector<float> exact = {1.0078125f * 0.75f * 2, -4.5f};
  std::vector<uint16_t> expected(2);
  kernels::FromFloat32(DType::kBFloat16, exact.data(), expected.data(), 2);
  EXPECT_EQ(narrow, expected);
}

// The buffer for a block of narrow elements is used by all narrow types.
TEST_F(BlockingCommunicatorTest, WiderElementsMayFollowNarrowerOnes) {
  constexpr size_t kBlock = 64 << 10;
  std::vector<uint8_t> small(kBlock, 0x38);  // 1
  const Piece first = {small.data(), small.data(), kBlock};
  ASSERT_TRUE(Execute(AllreduceOf({&first, 1}, DType::kFloat8E4M3FN)).ok());
  EXPECT_EQ(small, std::vector<uint8_t>(kBlock, 0x40));
  std::vector<uint16_t> large(kBlock, 0x3f80);
  const Piece second = {large.data(), large.data(), kBlock};
  ASSERT_TRUE(Execute(AllreduceOf({&second, 1}, DType::kBFloat16)).ok());
  EXPECT_EQ(large, std::vector<uint16_t>(kBlock, 0x4000));
}

TEST_F(BlockingCommunicatorTest, BucketsThatDifferHaveOtherTags) {
  ASSERT_TRUE(Execute(BarrierOf(1)).ok());
  Library other;
  Library::created = &other;
  ModuleArgs args;
  args.module = &Library::kModule;
  args.members = 2;
  args.store = store_;
  args.wake = [] {};
  auto second = *BlockingCommunicator::Create(std::move(args));
  second->Start(BarrierOf(2));
  while (*second->Advance() != Progress::kDone) sched_yield();
  EXPECT_NE(library_.calls()[1].tag, other.calls()[1].tag);
  second.reset();
}

TEST_F(BlockingCommunicatorTest, OperationsWithoutElementsStayHere) {
  const Piece piece;
  EXPECT_TRUE(Execute(AllreduceOf({&piece, 1}, DType::kFloat32)).ok());
  BucketOperation broadcast;
  broadcast.kind = OpKind::kBroadcast;
  broadcast.root = 1;
  broadcast.pieces = {&piece, 1};
  EXPECT_TRUE(Execute(broadcast).ok());
  const int64_t counts[] = {0, 0};
  BucketOperation allgather;
  allgather.kind = OpKind::kAllgather;
  allgather.pieces = {&piece, 1};
  allgather.counts = counts;
  EXPECT_TRUE(Execute(allgather).ok());
  EXPECT_EQ(library_.names(), std::vector<std::string>{"connect"});
}

TEST_F(BlockingCommunicatorTest, ResultsThatNobodyWantsHereAreMovedAllTheSame) {
  const std::vector<uint8_t> input = {1, 2, 3};
  const Piece piece = {input.data(), nullptr, 3};
  const int64_t counts[] = {3, 5};
  BucketOperation allgather;
  allgather.kind = OpKind::kAllgather;
  allgather.pieces = {&piece, 1};
  allgather.counts = counts;
  EXPECT_TRUE(Execute(allgather).ok());
  BucketOperation broadcast;
  broadcast.kind = OpKind::kBroadcast;
  broadcast.root = 1;
  broadcast.pieces = {&piece, 1};
  broadcast.elements = 3;
  EXPECT_TRUE(Execute(broadcast).ok());
  EXPECT_EQ(library_.calls()[1].size, 8u);
  EXPECT_EQ(library_.calls()[2].size, 3u);
  EXPECT_EQ(input, (std::vector<uint8_t>{1, 2, 3}));
}

TEST_F(BlockingCommunicatorTest, AnAbortEndsTheCallUnderWayAndClosesTheConnections) {
  library_.Hold("allreduce");
  std::vector<float> data(100, 1);
  const Piece piece = {data.data(), data.data(), 100};
  communicator_->Start(AllreduceOf({&piece, 1}, DType::kFloat32));
  library_.AwaitHeld();
  communicator_->Abort();
  std::fill(data.begin(), data.end(), 5.0f);  // ours again; ThreadSanitizer looks on
  library_.AwaitDestroyed();
  EXPECT_EQ(data, std::vector<float>(100, 5));
}

TEST_F(BlockingCommunicatorTest, AnAbortWaitsUntilTheTensorsAreLeftAlone) {
  library_.Hold("allreduce", /*listens=*/false);
  std::vector<float> data(100, 1);
  const Piece piece = {data.data(), data.data(), 100};
  communicator_->Start(AllreduceOf({&piece, 1}, DType::kFloat32));
  library_.AwaitHeld();
  int returned = 0;
  std::thread engine([&] {
    communicator_->Abort();
    returned = library_.NextEvent();
  });
  library_.AwaitAborted();
  library_.Release();
  engine.join();
  EXPECT_GT(returned, library_.last_end());
}

TEST_F(BlockingCommunicatorTest, AnAbortDoesNotWaitForAConnectionAndNothingBeginsAfterwards) {
  library_.Hold("connect", /*listens=*/false);
  std::vector<float> data(100, 1);
  const Piece piece = {data.data(), data.data(), 100};
  communicator_->Start(AllreduceOf({&piece, 1}, DType::kFloat32));
  library_.AwaitHeld();
  communicator_->Abort();
  std::fill(data.begin(), data.end(), 5.0f);
  library_.Release();
  library_.AwaitDestroyed();
  EXPECT_EQ(library_.names(), std::vector<std::string>{"connect"});
}

TEST_F(BlockingCommunicatorTest, AnAbortOfAnIdleOneClosesTheConnections) {
  ASSERT_TRUE(Execute(BarrierOf()).ok());
  communicator_->Abort();
  library_.AwaitDestroyed();
}

TEST_F(BlockingCommunicatorTest, OneThatNeverDidAnythingEnds) {
  communicator_.reset();
  EXPECT_TRUE(library_.destroyed());
  EXPECT_TRUE(library_.calls().empty());
}

TEST_F(BlockingCommunicatorTest, DestructionEndsTheCallUnderWay) {
  library_.Hold("barrier");
  communicator_->Start(BarrierOf());
  library_.AwaitHeld();
  communicator_.reset();
  EXPECT_TRUE(library_.destroyed());
}

}  // namespace
}  // namespace rueda
