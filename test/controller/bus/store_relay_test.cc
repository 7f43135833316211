// The store over real links: rank 0 keeps it, rank 1 reaches it directly, rank 2 through rank 1.
#include "controller/bus/store_relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>
#include <memory>
#include <set>
#include <thread>

#include "controller/protocol/rueda.pb.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

using ::testing::HasSubstr;

constexpr Rank kRanks = 3;
const SessionScope kScope = {"secret", "job", 1};

class Relays : public ::testing::Test {
 protected:
  Relays() {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      stores_.push_back(std::make_unique<LinkStore>([this] { ++wakes_; }));
    }
    for (Rank rank = 1; rank < kRanks; ++rank) {
      int fds[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      up_.push_back(Link::Client(UniqueFd(fds[0]), kScope, rank, rank - 1));
      down_.push_back(Link::Server(UniqueFd(fds[1]), kScope, rank - 1));
    }
    for (Rank rank = 0; rank < kRanks; ++rank) {
      relays_.push_back(
          std::make_unique<StoreRelay>(rank == 0 ? nullptr : up_[rank - 1].get(), store(rank)));
    }
    while (!up_[0]->established() || !up_[1]->established() || !down_[0]->established() ||
           !down_[1]->established()) {
      Turn();
    }
  }

  LinkStore* store(Rank rank) { return stores_[static_cast<size_t>(rank)].get(); }
  // Link `i` leads from rank i + 1 up to rank i.
  Link* up(int i) { return up_[static_cast<size_t>(i)].get(); }
  Link* down(int i) { return down_[static_cast<size_t>(i)].get(); }

  // What the engines of all ranks do in a turn.
  void Turn() {
    for (auto& relay : relays_) relay->Pump();
    for (int i = 0; i + 1 < kRanks; ++i) {
      Move(up(i), relays_[static_cast<size_t>(i) + 1].get());
      Move(down(i), relays_[static_cast<size_t>(i)].get());
    }
  }
  void Move(Link* link, StoreRelay* relay) {
    EXPECT_TRUE(link->OnWritable().ok());
    EXPECT_TRUE(link->OnReadable().ok());
    Link::Received received;
    while (link->Next(&received)) {
      const absl::Status status = relay->OnFrame(link, received.frame);
      EXPECT_TRUE(status.ok()) << status;
    }
  }
  // Get blocks, so it runs on a thread of its own, as a lane's does.
  std::future<absl::StatusOr<std::string>> Get(Rank rank, std::string key,
                                               Nanos timeout = kForever) {
    return std::async(std::launch::async, [this, rank, key = std::move(key), timeout] {
      return store(rank)->Get(key, timeout, never_);
    });
  }
  std::string Await(std::future<absl::StatusOr<std::string>> future) {
    while (future.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      Turn();
      std::this_thread::yield();
    }
    const absl::StatusOr<std::string> value = future.get();
    return value.ok() ? *value : value.status().ToString();
  }
  // Until the engine has been told of that many calls, and has seen to them.
  void AwaitCalls(int count) {
    while (wakes_ < count) std::this_thread::yield();
    for (int i = 0; i < 4 * kRanks; ++i) Turn();
  }

  const std::atomic<bool> never_{false};
  std::atomic<int> wakes_{0};
  std::vector<std::unique_ptr<LinkStore>> stores_;
  std::vector<std::unique_ptr<Link>> up_;
  std::vector<std::unique_ptr<Link>> down_;
  std::vector<std::unique_ptr<StoreRelay>> relays_;
};

TEST_F(Relays, WhatOneSetsAllGet) {
  for (Rank setter = 0; setter < kRanks; ++setter) {
    const std::string key = "key of " + std::to_string(setter);
    const std::string value = std::string("v\0\xff", 3) + std::to_string(setter);
    ASSERT_TRUE(store(setter)->Set(key, value).ok());
    for (Rank getter = 0; getter < kRanks; ++getter) EXPECT_EQ(Await(Get(getter, key)), value);
  }
}

TEST_F(Relays, AGetWaitsForItsSet) {
  std::vector<std::future<absl::StatusOr<std::string>>> gets;
  for (Rank rank = 0; rank < kRanks; ++rank) {
    gets.push_back(Get(rank, "late"));
    gets.push_back(Get(rank, "late"));
  }
  AwaitCalls(6);
  ASSERT_TRUE(store(2)->Set("other", "x").ok());
  ASSERT_TRUE(store(2)->Set("late", "").ok());
  for (auto& get : gets) EXPECT_EQ(Await(std::move(get)), "");
}

TEST_F(Relays, TheLatestValueCounts) {
  ASSERT_TRUE(store(2)->Set("k", "old").ok());
  ASSERT_TRUE(store(2)->Set("k", "new").ok());
  EXPECT_EQ(Await(Get(2, "k")), "new");
  EXPECT_EQ(Await(Get(0, "k")), "new");
}

TEST_F(Relays, TheLargestEntryFits) {
  const std::string key(kStoreKeyBytesMax, 'k');
  const std::string value(kStoreValueBytesMax, 'v');
  ASSERT_TRUE(store(2)->Set(key, value).ok());
  EXPECT_EQ(Await(Get(2, key)), value);
}

TEST_F(Relays, LargerEntriesAreRefusedWhereTheyAreMade) {
  const std::string key(kStoreKeyBytesMax + 1, 'k');
  EXPECT_TRUE(absl::IsInvalidArgument(store(2)->Set(key, "v")));
  EXPECT_TRUE(
      absl::IsInvalidArgument(store(2)->Set("k", std::string(kStoreValueBytesMax + 1, 'v'))));
  EXPECT_TRUE(absl::IsInvalidArgument(store(2)->Get(key, 0, never_).status()));
  EXPECT_FALSE(store(2)->HasCalls());
}

TEST_F(Relays, AGetGivesUpInTimeAndItsAnswerHarmsNobody) {
  EXPECT_THAT(Await(Get(1, "never", 20 * kMillisecond)), HasSubstr("never was not set in time"));
  EXPECT_THAT(Await(Get(1, "never", 0)), HasSubstr("DEADLINE_EXCEEDED"));
  ASSERT_TRUE(store(0)->Set("never", "after all").ok());
  ASSERT_TRUE(store(0)->Set("k", "v").ok());
  EXPECT_EQ(Await(Get(1, "k")), "v");
  EXPECT_EQ(Await(Get(1, "never")), "after all");
}

TEST_F(Relays, AnAbortEndsEveryGetNowAndLater) {
  auto first = Get(2, "a");
  auto second = Get(2, "b", 3'600 * kSecond);
  AwaitCalls(2);
  store(2)->Abort();
  EXPECT_TRUE(absl::IsAborted(first.get().status()));
  EXPECT_TRUE(absl::IsAborted(second.get().status()));
  EXPECT_TRUE(absl::IsAborted(store(2)->Get("c", kForever, never_).status()));
  EXPECT_TRUE(absl::IsAborted(store(2)->Set("c", "v")));
}

TEST_F(Relays, ALaneThatEndsLeavesTheOthersTheirGets) {
  LaneStore ending(std::shared_ptr<Store>(std::shared_ptr<Store>(), store(2)));
  auto ended = std::async(std::launch::async, [&] { return ending.Get("k", kForever); });
  auto other = Get(2, "k");
  AwaitCalls(2);
  ending.Abort();
  EXPECT_TRUE(absl::IsAborted(ended.get().status()));
  EXPECT_TRUE(absl::IsAborted(ending.Get("k", kForever).status()));
  ASSERT_TRUE(store(1)->Set("k", "v").ok());
  EXPECT_EQ(Await(std::move(other)), "v");
}

TEST_F(Relays, TheEngineIsWokenForEveryCall) {
  EXPECT_FALSE(store(1)->HasCalls());
  ASSERT_TRUE(store(1)->Set("k", "v").ok());
  EXPECT_EQ(wakes_, 1);
  EXPECT_TRUE(store(1)->HasCalls());
  EXPECT_EQ(store(1)->Take().size(), 1u);
  EXPECT_FALSE(store(1)->HasCalls());
}

// A peer that speaks nonsense -------------------------------------------------------------------

class Nonsense : public Relays {
 protected:
  absl::Status Deliver(FrameType type, std::string payload, Link* from = nullptr) {
    return relays_[1]->OnFrame(from == nullptr ? down(1) : from, {type, 0, std::move(payload)});
  }
};

TEST_F(Nonsense, IsRefused) {
  for (const FrameType type :
       {FrameType::kStoreSet, FrameType::kStoreGet, FrameType::kStoreValue}) {
    EXPECT_TRUE(absl::IsInvalidArgument(Deliver(type, "\xff\xff\xff")));
  }
  wire::StoreSet set;
  set.set_key(std::string(kStoreKeyBytesMax + 1, 'k'));
  EXPECT_TRUE(absl::IsInvalidArgument(Deliver(FrameType::kStoreSet, set.SerializeAsString())));
  set.set_key("k");
  set.set_value(std::string(kStoreValueBytesMax + 1, 'v'));
  EXPECT_TRUE(absl::IsInvalidArgument(Deliver(FrameType::kStoreSet, set.SerializeAsString())));
  wire::StoreGet get;
  get.set_key(std::string(kStoreKeyBytesMax + 1, 'k'));
  EXPECT_TRUE(absl::IsInvalidArgument(Deliver(FrameType::kStoreGet, get.SerializeAsString())));
}

TEST_F(Nonsense, AnswersThatNobodyAskedForAreRefused) {
  wire::StoreValue value;
  value.set_call(1);
  EXPECT_TRUE(
      absl::IsInvalidArgument(Deliver(FrameType::kStoreValue, value.SerializeAsString(), up(0))));
}

// Only the rank above may answer; one below could guess the number.
TEST_F(Nonsense, AnswersFromBelowAreRefused) {
  auto get = Get(1, "k");
  AwaitCalls(1);
  wire::StoreValue value;
  value.set_call(1);
  value.set_value("forged");
  EXPECT_TRUE(
      absl::IsInvalidArgument(Deliver(FrameType::kStoreValue, value.SerializeAsString(), down(1))));
  ASSERT_TRUE(store(0)->Set("k", "true").ok());
  EXPECT_EQ(Await(std::move(get)), "true");
}

}  // namespace
}  // namespace rueda
