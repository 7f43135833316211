// FAKE: whether the fake CUDA device does what its README.md says: all that tests of the library on
// it rest on.
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/tensor/signature.h"
#include "test/support/fake_cuda/control.h"
#include "test/support/fake_cuda/device_vector.h"

namespace rueda::fake_cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kFloat32 = static_cast<int32_t>(DType::kFloat32);
constexpr auto kSum = static_cast<int32_t>(ReduceOp::kSum);

int32_t Code(absl::StatusCode code) {
  return static_cast<int32_t>(code);
}
const int32_t kInternal = Code(absl::StatusCode::kInternal);
const int32_t kInvalid = Code(absl::StatusCode::kInvalidArgument);
const int32_t kAborted = Code(absl::StatusCode::kAborted);
const int32_t kUnavailable = Code(absl::StatusCode::kUnavailable);

class FakeCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    rueda_cuda_info info;
    ASSERT_EQ(Cuda().probe(&info, message_), 0);
    bytes_ = Fake().live_bytes();
  }
  void TearDown() override {
    Fake().reset();
    EXPECT_EQ(Fake().live_streams(), 0);
    EXPECT_EQ(Fake().live_events(), 0);
    EXPECT_EQ(Fake().live_communicators(), 0);
    EXPECT_EQ(Fake().live_bytes(), bytes_);
  }

  int32_t Copy(const CallersStream& stream, const void* from, void* to, int64_t elements) {
    const rueda_cuda_segment segment = {from, to, elements};
    const rueda_cuda_copy copy = {&segment, 1, kFloat32, kSum, 1};
    return Cuda().copy(0, stream.get(), &copy, message_);
  }

  Message message_;
  int64_t bytes_ = 0;
};

class Event {
 public:
  explicit Event(int32_t device = 0) : device_(device) {
    Message message;
    EXPECT_EQ(Cuda().open_event(device_, &event_, message), 0) << message.text;
  }
  ~Event() { Cuda().close_event(device_, event_); }
  void* get() const { return event_; }
  void Record(const CallersStream& stream) {
    Message message;
    EXPECT_EQ(Cuda().record(device_, event_, stream.get(), message), 0) << message.text;
  }
  void Wait(const CallersStream& stream) {
    Message message;
    EXPECT_EQ(Cuda().wait(device_, stream.get(), event_, message), 0) << message.text;
  }
  int32_t Synchronize() {
    Message message;
    return Cuda().synchronize(device_, event_, message);
  }

 private:
  const int32_t device_;
  void* event_ = nullptr;
};

// What tasks have done, in order.
class Record {
 public:
  std::function<void()> Task(const std::string& name) {
    return [this, name] {
      MutexLock lock(mutex_);
      done_.push_back(name);
    };
  }
  std::vector<std::string> done() {
    MutexLock lock(mutex_);
    return done_;
  }

 private:
  Mutex mutex_;
  std::vector<std::string> done_ ABSL_GUARDED_BY(mutex_);
};

// ---- devices ----

TEST_F(FakeCudaTest, WithoutDevicesProbeSaysSo) {
  ASSERT_EQ(setenv("FAKE_CUDA_DEVICES", "0", 1), 0);
  rueda_cuda_info info;
  EXPECT_EQ(Cuda().probe(&info, message_), Code(absl::StatusCode::kFailedPrecondition));
  EXPECT_STREQ(message_.text, "there is no CUDA device");
  EXPECT_EQ(info.devices, 0);
  ASSERT_EQ(unsetenv("FAKE_CUDA_DEVICES"), 0);
  EXPECT_EQ(Cuda().probe(&info, message_), 0);
  EXPECT_EQ(info.devices, 2);
}

TEST_F(FakeCudaTest, MemoryIsLocatedAlsoInTheMiddleOfABlock) {
  const DeviceVector<float> vector(1, 10);
  float on_host = 0;
  int32_t device = -2;
  EXPECT_EQ(Cuda().locate(vector.data() + 9, &device, message_), 0);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(Cuda().locate(vector.data() + 10, &device, message_), 0);
  EXPECT_EQ(device, -1);
  EXPECT_EQ(Cuda().locate(&on_host, &device, message_), 0);
  EXPECT_EQ(device, -1);
}

// ---- streams and events ----

TEST_F(FakeCudaTest, NothingRunsInsideTheCallThatEnqueuesIt) {
  CallersStream stream(0);
  stream.Hold();
  const DeviceVector<float> from(0, {1, 2, 3});
  const DeviceVector<float> to(0, {0, 0, 0});
  EXPECT_EQ(Copy(stream, from.data(), to.data(), 3), 0);
  EXPECT_EQ(stream.pending(), 1);
  EXPECT_THAT(to.Download(), ElementsAre(0, 0, 0));
  stream.Release();
  stream.Drain();
  EXPECT_THAT(to.Download(), ElementsAre(1, 2, 3));
}

TEST_F(FakeCudaTest, AStreamRunsItsTasksInOrderAndStepByStep) {
  CallersStream stream(0);
  Record record;
  stream.Hold();
  for (const char* const name : {"a", "b", "c"}) stream.Enqueue(record.Task(name));
  stream.Step(2);
  while (stream.pending() > 1) std::this_thread::yield();
  EXPECT_THAT(record.done(), ElementsAre("a", "b"));
  stream.Release();
  stream.Drain();
  EXPECT_THAT(record.done(), ElementsAre("a", "b", "c"));
}

TEST_F(FakeCudaTest, AWaitHoldsAStreamBackUntilTheEventsStreamGetsThere) {
  CallersStream first(0), second(0);
  Event event;
  Record record;
  first.Hold();
  first.Enqueue(record.Task("first"));
  event.Record(first);
  event.Wait(second);
  second.Enqueue(record.Task("second"));
  first.Release();
  second.Drain();
  EXPECT_THAT(record.done(), ElementsAre("first", "second"));
}

TEST_F(FakeCudaTest, AWaitIsForTheLatestRecordAtTheTimeOfTheCall) {
  CallersStream first(0), second(0), third(0);
  Event event;
  Record record;
  event.Wait(third);  // never recorded: it counts as done
  first.Hold();
  event.Record(first);
  event.Wait(second);
  second.Enqueue(record.Task("behind the first"));
  event.Record(third);  // replaces the record, but not what the second waits for
  EXPECT_EQ(event.Synchronize(), 0);
  EXPECT_EQ(second.pending(), 2);
  EXPECT_THAT(record.done(), ElementsAre());
  first.Release();
  second.Drain();
  EXPECT_THAT(record.done(), ElementsAre("behind the first"));
}

TEST_F(FakeCudaTest, AClosedEventIsStillWaitedFor) {
  CallersStream first(0), second(0);
  Record record;
  first.Hold();
  first.Enqueue(record.Task("first"));
  {
    Event event;
    event.Record(first);
    event.Wait(second);
  }
  second.Enqueue(record.Task("second"));
  first.Release();
  second.Drain();
  EXPECT_THAT(record.done(), ElementsAre("first", "second"));
}

TEST_F(FakeCudaTest, ACapturingStreamSaysSoAndTakesNothing) {
  CallersStream stream(0);
  Event event;
  int32_t capturing = -1;
  EXPECT_EQ(Cuda().is_capturing(0, stream.get(), &capturing, message_), 0);
  EXPECT_EQ(capturing, 0);
  Fake().set_capturing(0, stream.get(), 1);
  EXPECT_EQ(Cuda().is_capturing(0, stream.get(), &capturing, message_), 0);
  EXPECT_EQ(capturing, 1);
  EXPECT_EQ(Cuda().record(0, event.get(), stream.get(), message_), kInternal);
  EXPECT_EQ(Cuda().wait(0, stream.get(), event.get(), message_), kInternal);
  EXPECT_EQ(stream.pending(), 0);
}

TEST_F(FakeCudaTest, TheLogHasTheCallsInOrder) {
  CallersStream callers(0), lane(0);
  const DeviceVector<float> from(0, {1, 2, 3});
  const DeviceVector<float> to(0, 3);
  Event event;
  Fake().start_log();
  event.Record(callers);
  event.Wait(lane);
  Copy(lane, from.data(), to.data(), 3);
  const std::string e = std::to_string(Fake().event_number(event.get()));
  const std::string c = std::to_string(callers.number()), l = std::to_string(lane.number());
  EXPECT_THAT(WordsOf(), ElementsAre("record event " + e + " on stream " + c,
                                     "wait for event " + e + " on stream " + l,
                                     "copy 1 float32 on stream " + l));
  EXPECT_THAT(WordsOf({.stream = callers.number()}),
              ElementsAre("record event " + e + " on stream " + c));
  EXPECT_EQ(LogOf().back().out, to.data());
  lane.Drain();
}

// ---- what goes wrong ----

TEST_F(FakeCudaTest, UseAfterReleaseFailsTheDeviceForGood) {
  CallersStream stream(0);
  Event event;
  DeviceVector<float> from(0, {1, 2, 3});
  const DeviceVector<float> to(0, 3);
  stream.Hold();
  EXPECT_EQ(Copy(stream, from.data(), to.data(), 3), 0);
  { const DeviceVector<float> gone(std::move(from)); }
  event.Record(stream);
  stream.Release();
  stream.Drain();
  EXPECT_EQ(event.Synchronize(), kInternal);
  EXPECT_EQ(Copy(stream, to.data(), to.data(), 3), kInternal);
  EXPECT_THAT(message_.text, HasSubstr("an illegal memory access"));
  EXPECT_THAT(message_.text, HasSubstr("this was released"));
}

TEST_F(FakeCudaTest, MemoryBeyondTheEndOnTheHostOrOnAnotherDeviceFailsTheDevice) {
  CallersStream stream(0);
  const DeviceVector<float> here(0, 4), there(1, 4);
  std::vector<float> on_host(4);
  const std::pair<const float*, const char*> cases[] = {
      {here.data() + 1, "beyond the end"},
      {there.data(), "another device's"},
      {on_host.data(), "no device memory"},
      {reinterpret_cast<float*>(reinterpret_cast<char*>(here.data()) + 1), "misaligned"},
  };
  for (const auto& [from, words] : cases) {
    const DeviceVector<float> to(0, 4);
    EXPECT_EQ(Copy(stream, from, to.data(), 4), 0);
    stream.Drain();
    EXPECT_EQ(Copy(stream, from, to.data(), 4), kInternal);
    EXPECT_THAT(message_.text, HasSubstr(words));
    Fake().reset();
  }
}

TEST_F(FakeCudaTest, ATransferGoesBetweenHostAndDeviceWithinBounds) {
  const DeviceVector<float> vector(0, {1, 2});
  std::vector<float> on_host(3);
  EXPECT_EQ(Cuda().transfer(0, on_host.data(), vector.data(), 8, message_), 0);
  EXPECT_THAT(on_host, ElementsAre(1, 2, 0));
  EXPECT_EQ(Cuda().transfer(0, vector.data(), on_host.data(), 12, message_), kInternal);
  EXPECT_EQ(Cuda().transfer(0, on_host.data(), vector.data() + 1, 8, message_), kInternal);
  EXPECT_EQ(Cuda().transfer(0, on_host.data(), on_host.data() + 1, 4, message_), kInternal);
}

TEST_F(FakeCudaTest, ACallFailsWhereATestWantsIt) {
  CallersStream stream(0);
  Event event;
  Fake().fail_next("record", 0, 1, kInternal, "as wanted");
  EXPECT_EQ(Cuda().record(0, event.get(), stream.get(), message_), 0);
  EXPECT_EQ(Cuda().record(0, event.get(), stream.get(), message_), kInternal);
  EXPECT_STREQ(message_.text, "as wanted");
  EXPECT_EQ(Cuda().record(0, event.get(), stream.get(), message_), 0);
  stream.Drain();
}

TEST_F(FakeCudaTest, ThingsThatAreNotThereAreRefused) {
  CallersStream stream(0);
  Event event;
  int on_host = 0;
  EXPECT_EQ(Cuda().record(0, event.get(), &on_host, message_), kInvalid);
  EXPECT_EQ(Cuda().record(0, &on_host, stream.get(), message_), kInvalid);
  EXPECT_EQ(Cuda().record(1, event.get(), stream.get(), message_), kInvalid);
  EXPECT_EQ(Cuda().record(2, event.get(), stream.get(), message_), kInvalid);
}

// ---- kernels ----

TEST_F(FakeCudaTest, ABatchedCopyScalesAndFillsInWhatChangesNothing) {
  CallersStream stream(0);
  const DeviceVector<float> a(0, {1, 2}), b(0, {3}), bucket(0, 5);
  std::vector<rueda_cuda_segment> segments = {{a.data(), bucket.data(), 2},
                                              {nullptr, bucket.data() + 2, 2},
                                              {b.data(), bucket.data() + 4, 1}};
  const rueda_cuda_copy copy = {segments.data(), segments.size(), kFloat32,
                                static_cast<int32_t>(ReduceOp::kProduct), 0.5};
  EXPECT_EQ(Cuda().copy(0, stream.get(), &copy, message_), 0) << message_.text;
  segments.clear();  // they were read
  stream.Drain();
  EXPECT_THAT(bucket.Download(), ElementsAre(0.5, 1, 1, 1, 1.5));
}

TEST_F(FakeCudaTest, AReductionIsThatOfTheHost) {
  CallersStream stream(0);
  const DeviceVector<float> a(0, {1, 2}), b(0, {3, 5});
  const void* const sources[] = {a.data(), b.data()};
  const rueda_cuda_reduce reduce = {kFloat32, kSum, sources, 2, b.data(), 2, 2, 1, 4};
  EXPECT_EQ(Cuda().reduce(0, stream.get(), &reduce, message_), 0) << message_.text;
  stream.Drain();
  EXPECT_THAT(b.Download(), ElementsAre(2, 3.5));
}

// ---- communicators ----

struct Member {
  int self;
  int device;
  rueda_cuda_communicator* communicator;
  CallersStream* stream;
  Event* event;
  Message message;

  template <typename Function, typename... Args>
  int32_t operator()(Function function, Args... args) {
    return function(communicator, args..., message);
  }
  // Sleeps until its stream has got here.
  int32_t Synchronize() {
    const int32_t recorded = Cuda().record(device, event->get(), stream->get(), message);
    if (recorded == 0) return Cuda().synchronize(device, event->get(), message);
    stream->Drain();
    return recorded;
  }
};

void RunMember(const rueda_cuda_id& id, int size, int self,
               const std::function<void(Member&)>& body) {
  CallersStream stream(self % 2);
  Event event(self % 2);
  Member member = {self, self % 2, nullptr, &stream, &event, {}};
  ASSERT_EQ(Cuda().connect(&id, size, self, member.device, &member.communicator, member.message), 0)
      << member.message.text;
  ASSERT_EQ(member(Cuda().await, 10 * kSecond), 0) << member.message.text;
  body(member);
  Cuda().destroy(member.communicator);
}

void RunThreads(int size, const std::function<void(Member&)>& body) {
  rueda_cuda_id id;
  Message message;
  ASSERT_EQ(Cuda().make_id(&id, message), 0) << message.text;
  std::vector<std::thread> threads;
  for (int self = 0; self < size; ++self) {
    threads.emplace_back([&, self] { RunMember(id, size, self, body); });
  }
  for (std::thread& thread : threads) thread.join();
}

int32_t Allreduce(Member& member, const DeviceVector<float>& data, double factor = 1,
                  int32_t op = kSum) {
  return member(Cuda().allreduce, member.stream->get(), data.data(), data.data(),
                static_cast<int64_t>(data.size()), kFloat32, op, factor);
}

void RunAllCollectives(Member& member) {
  constexpr int kSize = 3;
  const auto self = static_cast<float>(member.self);
  void* const stream = member.stream->get();
  const int device = member.device;

  const DeviceVector<float> sum(device, {self, 10}), average(device, {self, 10});
  EXPECT_EQ(Allreduce(member, sum, 2), 0) << member.message.text;
  EXPECT_EQ(Allreduce(member, average, 1, static_cast<int32_t>(ReduceOp::kAverage)), 0);

  const DeviceVector<float> in(device, {self, 1, 2}), own(device, 1), rooted(device, 3);
  EXPECT_EQ(member(Cuda().reducescatter, stream, in.data(), own.data(), 1, kFloat32, kSum, 1.0), 0);
  EXPECT_EQ(member(Cuda().reduce_to, stream, in.data(), rooted.data(), 3, kFloat32, kSum, 1.0, 1),
            0);

  const DeviceVector<float> all(device, kSize), told(device, 1);
  all.data()[member.self] = self;
  EXPECT_EQ(member(Cuda().allgather, stream, all.data() + member.self, all.data(), sizeof(float)),
            0);
  EXPECT_EQ(member(Cuda().broadcast, stream, member.self == 2 ? in.data() : nullptr, told.data(),
                   sizeof(float), 2),
            0);

  // All to all, itself included.
  const DeviceVector<float> out(device, {self, self + 10, self + 20}), from(device, kSize);
  EXPECT_EQ(member(Cuda().begin), 0);
  for (int peer = 0; peer < kSize; ++peer) {
    EXPECT_EQ(member(Cuda().send, stream, out.data() + peer, sizeof(float), peer), 0);
    EXPECT_EQ(member(Cuda().receive, stream, from.data() + peer, sizeof(float), peer), 0);
  }
  EXPECT_EQ(member(Cuda().end), 0) << member.message.text;

  EXPECT_EQ(member.Synchronize(), 0) << member.message.text;
  EXPECT_EQ(member(Cuda().check), 0) << member.message.text;
  EXPECT_THAT(sum.Download(), ElementsAre(6, 60));
  EXPECT_THAT(average.Download(), ElementsAre(1, 10));
  EXPECT_THAT(own.Download(), ElementsAre(member.self == 2 ? 6 : 3));
  if (member.self == 1) {
    EXPECT_THAT(rooted.Download(), ElementsAre(3, 3, 6));
  }
  EXPECT_THAT(all.Download(), ElementsAre(0, 1, 2));
  EXPECT_THAT(told.Download(), ElementsAre(2));
  EXPECT_THAT(from.Download(), ElementsAre(10 * self, 10 * self + 1, 10 * self + 2));
}

TEST_F(FakeCudaTest, ThreeThreadsDoAllCollectives) {
  RunThreads(3, RunAllCollectives);
}

TEST_F(FakeCudaTest, ThreeProcessesDoAllCollectives) {
  // Forked before the id is made, as ranks are; the first one's process has the hub.
  constexpr int kSize = 3;
  int pipes[kSize][2];
  for (auto& ends : pipes) ASSERT_EQ(pipe(ends), 0);
  std::vector<pid_t> pids;
  for (int self = 0; self < kSize; ++self) {
    pids.push_back(fork());
    if (pids.back() != 0) continue;
    rueda_cuda_id id = {};
    if (self == 0) {
      Message message;
      EXPECT_EQ(Cuda().make_id(&id, message), 0) << message.text;
      for (auto& ends : pipes) EXPECT_EQ(write(ends[1], &id, sizeof id), ssize_t{sizeof id});
    }
    EXPECT_EQ(read(pipes[self][0], &id, sizeof id), ssize_t{sizeof id});
    RunMember(id, kSize, self, RunAllCollectives);
    _exit(HasFailure() ? 1 : 0);
  }
  for (const pid_t pid : pids) {
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  for (auto& ends : pipes) {
    close(ends[0]);
    close(ends[1]);
  }
}

TEST_F(FakeCudaTest, ACollectiveWaitsForItsStreamAndForTheOtherMembers) {
  std::atomic<bool> seen{false};
  RunThreads(2, [&](Member& member) {
    const DeviceVector<float> data(member.device, {0});
    member.stream->Hold();
    member.stream->Enqueue([&] { data.data()[0] = 1; });  // the caller's kernel
    EXPECT_EQ(Allreduce(member, data), 0);
    if (member.self == 0) {
      member.stream->Release();
      while (!seen.load()) std::this_thread::yield();
    } else {
      EXPECT_EQ(member.stream->pending(), 2);
      seen.store(true);
      member.stream->Release();
    }
    EXPECT_EQ(member.Synchronize(), 0);
    EXPECT_THAT(data.Download(), ElementsAre(2));
  });
}

TEST_F(FakeCudaTest, OperationsThatDoNotMatchFailAllMembersInWords) {
  RunThreads(2, [&](Member& member) {
    const DeviceVector<float> data(member.device, size_t{4} + member.self);
    EXPECT_EQ(Allreduce(member, data), 0);
    EXPECT_EQ(member.Synchronize(), kInternal);
    EXPECT_EQ(Allreduce(member, data), kInternal);
    EXPECT_THAT(member.message.text, HasSubstr("member 0: allreduce of 4 float32, sum"));
    EXPECT_THAT(member.message.text, HasSubstr("member 1: allreduce of 5 float32, sum"));
  });
}

TEST_F(FakeCudaTest, WhatNcclLacksIsNotSupportedAndRefused) {
  RunThreads(1, [&](Member& member) {
    const auto supports = [&](DType dtype, ReduceOp op) {
      return Cuda().supports(member.communicator, static_cast<int32_t>(dtype),
                             static_cast<int32_t>(op));
    };
    EXPECT_TRUE(supports(DType::kFloat8E4M3FN, ReduceOp::kSum));
    EXPECT_TRUE(supports(DType::kComplex64, ReduceOp::kSum));
    EXPECT_TRUE(supports(DType::kFloat16, ReduceOp::kAverage));
    EXPECT_FALSE(supports(DType::kInt32, ReduceOp::kAverage));
    EXPECT_FALSE(supports(DType::kInt16, ReduceOp::kSum));
    EXPECT_FALSE(supports(DType::kBool, ReduceOp::kMax));
    EXPECT_FALSE(supports(DType::kInt32, ReduceOp::kBitAnd));
    const DeviceVector<float> data(member.device, 4);
    EXPECT_EQ(Allreduce(member, data, 1, static_cast<int32_t>(ReduceOp::kBitAnd)), kInvalid);
    EXPECT_EQ(Allreduce(member, data, 2, static_cast<int32_t>(ReduceOp::kMax)), kInvalid);
    Fake().refuse(kFloat32, kSum);
    EXPECT_FALSE(supports(DType::kFloat32, ReduceOp::kSum));
  });
}

TEST_F(FakeCudaTest, InputAndOutputMayNotOverlapOtherwiseThanInPlace) {
  RunThreads(1, [&](Member& member) {
    const DeviceVector<float> data(member.device, 4);
    EXPECT_EQ(member(Cuda().allreduce, member.stream->get(), data.data(), data.data() + 1, 3,
                     kFloat32, kSum, 1.0),
              0);
    EXPECT_EQ(member.Synchronize(), kInternal);
    EXPECT_EQ(Cuda().check(member.communicator, member.message), kInternal);
    EXPECT_THAT(member.message.text, HasSubstr("overlap"));
  });
}

TEST_F(FakeCudaTest, ASplitMakesOneForEachColorInTheOrderOfTheKeys) {
  RunThreads(3, [&](Member& member) {
    const int color = member.self == 1 ? -1 : 7;
    Member part = {2 - member.self, member.device, nullptr, member.stream, member.event, {}};
    EXPECT_EQ(member(Cuda().split, color, -member.self, &part.communicator), 0);
    if (color < 0) {
      EXPECT_EQ(part.communicator, nullptr);
      return;
    }
    ASSERT_EQ(part(Cuda().await, 10 * kSecond), 0) << part.message.text;
    const DeviceVector<float> mine(member.device, {static_cast<float>(member.self)});
    const DeviceVector<float> all(member.device, 2);
    EXPECT_EQ(part(Cuda().allgather, member.stream->get(), mine.data(), all.data(), sizeof(float)),
              0)
        << part.message.text;
    EXPECT_EQ(part.Synchronize(), 0);
    EXPECT_THAT(all.Download(), ElementsAre(2, 0));
    Cuda().destroy(part.communicator);
  });
}

TEST_F(FakeCudaTest, ASplitThatDoesNotWorkSaysSoOnAllMembers) {
  Fake().set_split(0);
  RunThreads(2, [&](Member& member) {
    rueda_cuda_communicator* part = nullptr;
    EXPECT_EQ(member(Cuda().split, 0, 0, &part), Code(absl::StatusCode::kUnimplemented));
    EXPECT_EQ(part, nullptr);
  });
}

TEST_F(FakeCudaTest, ASplitWithWorkUnderWayFailsTheDevice) {
  RunThreads(2, [&](Member& member) {
    const DeviceVector<float> data(member.device, {1});
    member.stream->Hold();
    EXPECT_EQ(Allreduce(member, data), 0);
    rueda_cuda_communicator* part = nullptr;
    EXPECT_EQ(member(Cuda().split, 0, 0, &part), kInternal);
    EXPECT_THAT(member.message.text, HasSubstr("split with work under way"));
    EXPECT_EQ(part, nullptr);
    member.stream->Drain();
  });
}

TEST_F(FakeCudaTest, AnAbortEndsWhatWaitsForAMemberThatDoesNotCome) {
  RunThreads(2, [&](Member& member) {
    if (member.self == 1) {  // enqueues nothing
      while (member(Cuda().check) == 0) std::this_thread::yield();
      EXPECT_EQ(member(Cuda().check), kUnavailable);
      EXPECT_STREQ(member.message.text, "member 0 has vanished");
      return Cuda().abort(member.communicator);
    }
    const DeviceVector<float> data(member.device, {1});
    EXPECT_EQ(Allreduce(member, data), 0);
    EXPECT_EQ(Allreduce(member, data), 0);
    std::thread([&] { Cuda().abort(member.communicator); }).join();
    EXPECT_EQ(member.Synchronize(), 0);
    EXPECT_EQ(Allreduce(member, data), kAborted);
    EXPECT_EQ(member(Cuda().check), kAborted);
  });
}

TEST_F(FakeCudaTest, AVanishedMemberHangsItsPeersAndCheckTells) {
  RunThreads(3, [&](Member& member) {
    const DeviceVector<float> data(member.device, {1});
    if (member.self == 1) {
      Fake().kill_device(1);  // only this member is there
    } else {
      EXPECT_EQ(Allreduce(member, data), 0);
      while (member(Cuda().check) == 0) std::this_thread::yield();
      EXPECT_EQ(member(Cuda().check), kUnavailable);
      EXPECT_STREQ(member.message.text, "member 1 has vanished");
      EXPECT_EQ(member.stream->pending(), 1);
    }
    Cuda().abort(member.communicator);
    EXPECT_EQ(member.Synchronize(), 0);
  });
}

TEST_F(FakeCudaTest, AwaitEndsInTimeAndWithAbort) {
  rueda_cuda_id id;
  ASSERT_EQ(Cuda().make_id(&id, message_), 0);
  CallersStream stream(0);
  Member member = {0, 0, nullptr, &stream, nullptr, {}};
  ASSERT_EQ(Cuda().connect(&id, 2, 0, 0, &member.communicator, message_), 0);
  EXPECT_EQ(member(Cuda().await, 30 * kMillisecond), Code(absl::StatusCode::kDeadlineExceeded));
  const DeviceVector<float> data(0, {1});
  EXPECT_EQ(Allreduce(member, data), kInvalid);  // it is not ready
  std::thread aborter([&] { Cuda().abort(member.communicator); });
  EXPECT_EQ(member(Cuda().await, 100 * kSecond), kAborted);
  aborter.join();
  Cuda().destroy(member.communicator);
}

TEST_F(FakeCudaTest, BuffersOutliveAnAbortedCommunicator) {
  RunThreads(1, [&](Member& member) {
    void* memory = nullptr;
    EXPECT_EQ(member(Cuda().allocate_buffer, size_t{64}, &memory), 0);
    void* other = nullptr;
    EXPECT_EQ(member(Cuda().allocate_buffer, size_t{64}, &other), 0);
    Cuda().release_buffer(member.device, member.communicator, other);
    Cuda().abort(member.communicator);
    Cuda().release_buffer(member.device, nullptr, memory);
  });
}

TEST_F(FakeCudaTest, AFailedDeviceDropsWhatItHas) {
  RunThreads(2, [&](Member& member) {
    const DeviceVector<float> data(member.device, {1});
    if (member.self == 1) {
      while (member(Cuda().check) == 0) std::this_thread::yield();
      return Cuda().abort(member.communicator);
    }
    EXPECT_EQ(Allreduce(member, data), 0);  // the other one never comes
    Event event(0);
    event.Record(*member.stream);
    Fake().fail_device(0, "as wanted");
    EXPECT_EQ(event.Synchronize(), kInternal);
    member.stream->Drain();
    EXPECT_EQ(Allreduce(member, data), kInternal);
    EXPECT_STREQ(member.message.text, "as wanted");
  });
}

}  // namespace
}  // namespace rueda::fake_cuda
