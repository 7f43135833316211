// The C++ API's old form, arguments by position, and old names: deprecated, and go with version
// 0.3. Until then they do what the new ones do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "rueda/rueda.hpp"
#include "test/support/run_ranks.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace rueda {
namespace {

using ::testing::ElementsAre;
using Ints = std::vector<int32_t>;

constexpr int kRanks = 2;

// The body's current context is its rank's.
void OnTwoRanks(const std::function<void(int rank)>& body) {
  testing::RunRanks({kRanks, testing::ShmSetups().front(), {}},
                    [&](rueda_context* context, int rank) {
                      rueda_set_thread_context(context);
                      body(rank);
                      rueda_set_thread_context(nullptr);
                    });
}

TEST(Positional, ReductionsTakeTheirArgumentsByPosition) {
  OnTwoRanks([](int rank) {
    const Ints mine = {rank + 1, 10};
    const Ints sum = {3, 20}, scaled = {18, 120};
    const ProcessSet world = {0};
    const std::string name = "g";
    const char* const also_name = "h";
    EXPECT_EQ(allreduce(mine, "", Sum), sum);
    EXPECT_EQ(allreduce(mine, name, Sum, 2, 3, world, ""), scaled);
    EXPECT_EQ(allreduce(mine, also_name, Sum, 2, 3, {0}), scaled);
    EXPECT_EQ(allreduce(mine, "i"), (Ints{1, 10}));
    EXPECT_EQ(synchronize(allreduce_async(mine, "a", Sum)), sum);
    Ints data = mine, more = mine;
    allreduce_(data, name + "!", Sum);
    EXPECT_EQ(data, sum);
    allreduce_({data.data(), {2}}, "braces", Max);
    EXPECT_EQ(data, sum);
    synchronize(allreduce_async_(data, "b", Sum));
    EXPECT_EQ(data, (Ints{6, 40}));
    data = mine;
    grouped_allreduce_({data, more}, "c", Sum);
    synchronize(grouped_allreduce_async_({data, more}, "d", Max));
    EXPECT_THAT(std::make_pair(data, more), ::testing::Pair(sum, sum));
    const std::vector<Ints> group = {mine, mine};
    EXPECT_THAT(grouped_allreduce(group, "e", Sum), ElementsAre(sum, sum));
    EXPECT_THAT(synchronize(grouped_allreduce_async(group, "f", Sum)), ElementsAre(sum, sum));

    const Ints row = {sum[static_cast<size_t>(rank)]};
    EXPECT_EQ(reducescatter(mine, "g", Sum), row);
    EXPECT_EQ(synchronize(reducescatter_async(mine, "h", Sum)), row);
    EXPECT_THAT(grouped_reducescatter(group, "i", Sum), ElementsAre(row, row));
    EXPECT_THAT(synchronize(grouped_reducescatter_async(group, "j", Sum)), ElementsAre(row, row));

    const Ints at_root = rank == 1 ? scaled : Ints();
    EXPECT_EQ(reduce(mine, 1, "k", Sum, 2, 3, world), at_root);
    EXPECT_EQ(synchronize(reduce_async(mine, 1, "l", Sum, 2, 3)), at_root);
    data = more = mine;
    reduce_(data, 1, "m", Sum, 2, 3);
    synchronize(reduce_async_(more, 1, "n", Sum, 2, 3));
    EXPECT_EQ(data, rank == 1 ? scaled : mine);
    EXPECT_EQ(more, rank == 1 ? scaled : mine);
  });
}

TEST(Positional, MovesTakeTheirArgumentsByPosition) {
  OnTwoRanks([](int rank) {
    const ProcessSet world = {0};
    const Ints mine = {rank, 10 + rank}, roots = {1, 11}, all = {0, 10, 1, 11};
    EXPECT_EQ(broadcast(mine, 1, "a", world), roots);
    EXPECT_EQ(synchronize(broadcast_async(mine, 1, "b")), roots);
    Ints data = mine, more = mine;
    broadcast_(data, 1, "c");
    synchronize(broadcast_async_(more, 1, "d"));
    EXPECT_EQ(data, roots);
    EXPECT_EQ(more, roots);
    EXPECT_EQ(allgather(mine, "e", world), all);
    EXPECT_EQ(synchronize(allgather_async(mine, "f")), all);
    const std::vector<Ints> group = {mine};
    EXPECT_THAT(grouped_allgather(group, "g"), ElementsAre(all));
    EXPECT_THAT(synchronize(grouped_allgather_async(group, "h")), ElementsAre(all));
    EXPECT_EQ(gather(mine, 0, "i"), rank == 0 ? all : Ints());
    EXPECT_EQ(synchronize(gather_async(mine, 0, "j")), rank == 0 ? all : Ints());

    const Ints row = {1 + 10 * rank};
    const std::vector<int64_t> ones = {1, 1};
    EXPECT_EQ(scatter(mine, 1, ones, "k", world), row);
    EXPECT_EQ(scatter(mine, 1, {}, "l"), row);
    EXPECT_EQ(synchronize(scatter_async(mine, 1, {1, 1})), row);
    const Ints column = {10 * rank, 1 + 10 * rank};
    EXPECT_EQ(alltoall(mine, {1, 1}).tensor, column);
    EXPECT_EQ(alltoall(mine, {}, "m", world).tensor, column);
    EXPECT_EQ(synchronize(alltoall_async(mine, ones, "n")).tensor, column);

    if (rank == 0) {
      send(mine, 1, "o");
      synchronize(send_async(mine, 1, "p"));
    } else {
      recv(data, 0, "o");
      synchronize(recv_async(more, 0, "p"));
      EXPECT_EQ(data, (Ints{0, 10}));
      EXPECT_EQ(more, (Ints{0, 10}));
    }
    EXPECT_EQ(broadcast_object(std::to_string(rank), 1, "q", world), "1");
    EXPECT_THAT(allgather_object(std::to_string(rank), "r", world), ElementsAre("0", "1"));
  });
}

TEST(OldNames, AMembershipWasAnEpoch) {
  OnTwoRanks([](int) { EXPECT_EQ(epoch(), membership()); });
  rueda_error details = RUEDA_ERROR_INIT;
  details.membership = 7;
  EXPECT_EQ(Error(RUEDA_ABORTED, "enough", details).epoch(), 7u);
}

// What the new form refuses.
template <typename T>
concept AnyGoesOnWith = requires(T tensor) {
  allreduce_async_(std::forward<T>(tensor), "name");
}
|| requires(T tensor) {
  reduce_async_(std::forward<T>(tensor), 0, "name");
}
|| requires(T tensor) {
  broadcast_async_(std::forward<T>(tensor), 0, "name");
}
|| requires(T tensor) {
  recv_async(std::forward<T>(tensor), 0, "name");
};
static_assert(AnyGoesOnWith<Ints&>);
static_assert(!AnyGoesOnWith<Ints>);
static_assert(!AnyGoesOnWith<const Ints&>);
static_assert(!AnyGoesOnWith<Tensor>);

}  // namespace
}  // namespace rueda
