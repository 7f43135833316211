// What can be done with handles beside synchronize: waiting with a limit, callbacks, many at once.
#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rueda/torch.hpp"
#include "test/torch/ranks.h"
#include "test/torch/tensors.h"

namespace hvd = rueda::libtorch;

namespace {

using std::chrono::milliseconds;

using rueda::test::RankSum;
using rueda::test::Same;
using rueda::test::StatusOf;

constexpr auto kForever = std::chrono::nanoseconds::max();

torch::Tensor Mine() {
  return torch::full({3}, static_cast<double>(hvd::rank()));
}
torch::Tensor Sums() {
  return torch::full({3}, RankSum());
}

// What callbacks were told.
class Calls {
 public:
  auto callback() {
    return [this](const rueda::Error* error) {
      const std::lock_guard lock(mutex_);
      texts_.push_back(error == nullptr ? "well" : error->what());
      changed_.notify_all();
    };
  }
  // The latest, once there have been that many.
  std::string Await(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return texts_.size() >= count; });
    EXPECT_EQ(texts_.size(), count);
    return texts_.back();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_;
};

RANKS_TEST(Handles, WaitForAsLongAsTheySay, 2) {
  // Rank 1 starts what rank 0 waits for once that has found it missing.
  if (hvd::rank() == 0) {
    const hvd::Handle handle = hvd::allreduce_async(Mine(), {.name = "late", .op = hvd::Sum});
    EXPECT_FALSE(handle.wait_for(milliseconds(0)));
    EXPECT_FALSE(handle.wait_for(milliseconds(20)));
    // Also while another thread synchronizes it, as it does once poll says that it can't look.
    std::thread other([&] { EXPECT_TRUE(Same(hvd::synchronize(handle), Sums())); });
    EXPECT_FALSE(handle.wait_for(milliseconds(20)));
    hvd::broadcast(torch::ones({1}), 0, {.name = "go"});
    EXPECT_TRUE(handle.wait_for(kForever));
    other.join();
    EXPECT_TRUE(handle.wait_for(milliseconds(0))) << "it has been synchronized";
  } else {
    hvd::broadcast(torch::ones({1}), 0, {.name = "go"});
    EXPECT_TRUE(Same(hvd::allreduce(Mine(), {.name = "late", .op = hvd::Sum}), Sums()));
  }
  // How it ended is synchronize's to tell.
  const hvd::Handle uneven = hvd::allreduce_async(torch::ones({hvd::rank() + 1}), {.name = "u"});
  EXPECT_TRUE(uneven.wait_for(kForever));
  EXPECT_EQ(StatusOf([&] { hvd::synchronize(uneven); }), RUEDA_INVALID_ARGUMENT);
  EXPECT_EQ(StatusOf([] { (void)hvd::Handle().wait_for(kForever); }), RUEDA_INVALID_ARGUMENT);
}

RANKS_TEST(Handles, CallBackOnceWhenTheOperationHasEnded, 2) {
  Calls calls;
  const hvd::Handle handle = hvd::allreduce_async(Mine(), {.name = "a", .op = hvd::Sum});
  handle.then(calls.callback());
  EXPECT_TRUE(Same(hvd::synchronize(handle), Sums()));
  EXPECT_EQ(calls.Await(1), "well");
  handle.then(calls.callback());
  EXPECT_EQ(calls.Await(2), "well") << "it has been synchronized";
  // Nobody has the handle when it fails.
  hvd::allreduce_async(torch::ones({hvd::rank() + 1}), {.name = "b"}).then(calls.callback());
  EXPECT_NE(calls.Await(3).find("'b'"), std::string::npos);
  const hvd::Handle failed = hvd::allreduce_async(torch::ones({hvd::rank() + 1}), {.name = "c"});
  EXPECT_EQ(StatusOf([&] { hvd::synchronize(failed); }), RUEDA_INVALID_ARGUMENT);
  failed.then(calls.callback());
  EXPECT_NE(calls.Await(4).find("'c'"), std::string::npos);
  // A callback may take the result, and start what comes next.
  const hvd::Handle next = hvd::allreduce_async(Mine(), {.name = "d", .op = hvd::Sum});
  torch::Tensor most;
  next.then([&, next, then = calls.callback()](const rueda::Error* error) {
    most = hvd::allreduce(hvd::synchronize(next), {.name = "e", .op = hvd::Max});
    then(error);
  });
  EXPECT_EQ(calls.Await(5), "well");
  EXPECT_TRUE(Same(most, Sums()));
}

RANKS_TEST(Handles, OfGroupsAndSparseTensorsCanTheSame, 2) {
  Calls calls;
  const std::vector<torch::Tensor> two = {Mine(), Mine()};
  const hvd::GroupHandle group = hvd::grouped_allreduce_async(two, {.op = hvd::Sum});
  const hvd::SparseHandle sparse =
      hvd::sparse_allreduce_async(Mine().to_sparse(), {.op = hvd::Sum});
  group.then(calls.callback());
  EXPECT_EQ(calls.Await(1), "well");
  sparse.then(calls.callback());
  EXPECT_EQ(calls.Await(2), "well");
  EXPECT_TRUE(group.wait_for(kForever) && sparse.wait_for(kForever));
  EXPECT_TRUE(Same(hvd::synchronize(group)[1], Sums()));
  EXPECT_TRUE(Same(hvd::synchronize(sparse).to_dense(), Sums()));
}

RANKS_TEST(Handles, WaitAllGivesResultsInOrderOrTheFirstError, 2) {
  std::vector<hvd::Handle> handles;
  for (int i = 0; i < 5; ++i) {
    handles.push_back(hvd::allreduce_async(Mine() + i, {.op = hvd::Sum}));
  }
  const std::vector<torch::Tensor> sums = hvd::wait_all(handles);
  ASSERT_EQ(sums.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(Same(sums[static_cast<size_t>(i)], Sums() + i * hvd::size()));
  }
  EXPECT_TRUE(Same(hvd::wait_all({handles[3], handles[1]})[1], sums[1]));
  EXPECT_TRUE(hvd::wait_all(std::vector<hvd::GroupHandle>()).empty());
  const torch::Tensor uneven = torch::ones({hvd::rank() + 1});
  handles = {hvd::allreduce_async(Mine(), {.name = "well", .op = hvd::Sum}),
             hvd::allreduce_async(uneven, {.name = "x"}),
             hvd::allreduce_async(uneven, {.name = "y"})};
  std::string message;
  EXPECT_EQ(StatusOf([&] { hvd::wait_all(handles); }, &message), RUEDA_INVALID_ARGUMENT);
  EXPECT_NE(message.find("'x'"), std::string::npos) << message;
  EXPECT_TRUE(hvd::poll(handles[2]));
  EXPECT_TRUE(Same(hvd::synchronize(handles[0]), Sums()));
}

}  // namespace
