// Requests, their handles, and what else is called at their end.
#include "controller/lanes/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace rueda {
namespace {

TEST(RequestTable, AHandleIsValidUntilItIsReleased) {
  RequestTable table(1);
  const absl::StatusOr<Request*> request = table.Acquire();
  ASSERT_TRUE(request.ok());
  const Handle handle = (*request)->handle();
  EXPECT_NE(handle, 0u);
  const absl::StatusOr<Request*> found = table.Find(handle);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(*found, *request);
  table.Unreference(*found);
  EXPECT_TRUE(table.Release(handle).ok());
  EXPECT_TRUE(absl::IsNotFound(table.Find(handle).status()));
  EXPECT_TRUE(absl::IsNotFound(table.Release(handle)));
  table.Unreference(*request);  // the engine's
}

TEST(RequestTable, AHandleOfAnEarlierRequestOrContextIsNoneOfALaterOne) {
  RequestTable table(1);
  Request* const first = *table.Acquire();
  const Handle handle = first->handle();
  ASSERT_TRUE(table.Release(handle).ok());
  table.Unreference(first);
  Request* const second = *table.Acquire();
  EXPECT_EQ(second, first) << "it was free";
  EXPECT_NE(second->handle(), handle);
  EXPECT_TRUE(absl::IsNotFound(table.Find(handle).status()));
  EXPECT_TRUE(absl::IsNotFound(RequestTable(2).Find(handle).status()));
}

TEST(RequestTable, OfAnEarlierMembershipNothingIsLearned) {
  RequestTable table(1);
  Request* const request = *table.Acquire();
  const Handle handle = request->handle();
  request->agreed = 3;
  request->value = 7;
  table.Unreference(request);  // the engine's
  table.EndMembership();
  const absl::StatusOr<Request*> found = table.Find(handle);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)->agreed, 0);
  EXPECT_EQ((*found)->value, 7) << "its result stays";
  table.Unreference(*found);
}

TEST(RequestTable, ARequestInUseIsNotGivenOutAgain) {
  RequestTable table(1);
  Request* const first = *table.Acquire();
  ASSERT_TRUE(table.Release(first->handle()).ok());  // the engine still has it
  EXPECT_NE(*table.Acquire(), first);
}

void Count(void* user, Handle, absl::StatusCode) {
  ++*static_cast<int*>(user);
}

TEST(LateCallbacks, AreAllThereAtTheEnd) {
  LateCallbacks callbacks;
  int users[3] = {};
  for (int& user : users) EXPECT_TRUE(callbacks.Add(&Count, &user));
  for (auto late = callbacks.Close(); late != nullptr; late = std::move(late->next)) {
    late->function(late->user, 0, absl::StatusCode::kOk);
  }
  EXPECT_THAT(users, ::testing::Each(1));
}

TEST(LateCallbacks, AreRefusedOnceTheRequestHasEnded) {
  LateCallbacks callbacks;
  EXPECT_EQ(callbacks.Close(), nullptr);
  int user = 0;
  EXPECT_FALSE(callbacks.Add(&Count, &user));
  callbacks.Reopen();
  EXPECT_TRUE(callbacks.Add(&Count, &user));
}

// Threads add while another ends the request: each callback is in the list, or was refused.
TEST(LateCallbacks, NoneIsLostAtTheEnd) {
  for (int round = 0; round < 200; ++round) {
    LateCallbacks callbacks;
    std::atomic<int> accepted{0};
    std::vector<std::thread> threads;
    int user = 0;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&] {
        for (int i = 0; i < 20; ++i) accepted += callbacks.Add(&Count, &user) ? 1 : 0;
      });
    }
    int listed = 0;
    for (auto late = callbacks.Close(); late != nullptr; late = std::move(late->next)) ++listed;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(listed, accepted);
  }
}

}  // namespace
}  // namespace rueda
