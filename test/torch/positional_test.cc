// The old form of torch.hpp, arguments by position: deprecated, and goes with version 0.3. Until
// then it does what the new one does, with the order of arguments that it had.
#include <torch/torch.h>

#include <vector>

#include "rueda/torch.hpp"
#include "test/torch/ranks.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace hvd = rueda::libtorch;

namespace {

torch::Tensor Of(std::vector<float> values) {
  return torch::tensor(values);
}

bool Equal(const std::vector<torch::Tensor>& tensors, const torch::Tensor& expected) {
  for (const torch::Tensor& tensor : tensors) {
    if (!torch::equal(tensor, expected)) return false;
  }
  return !tensors.empty();
}

RANKS_TEST(Positional, ReductionsTakeTheirArgumentsByPosition, 2) {
  const auto rank = static_cast<float>(hvd::rank());
  const hvd::ProcessSet world = {0};
  const torch::Tensor mine = Of({rank + 1, 10}), sum = Of({3, 20}), scaled = Of({18, 120});
  EXPECT_TRUE(torch::equal(hvd::allreduce(mine, "", hvd::Sum), sum));
  EXPECT_TRUE(torch::equal(hvd::allreduce(mine, "a", hvd::Sum, 2, 3, world), scaled));
  EXPECT_TRUE(torch::equal(hvd::allreduce_(mine.clone(), "b", hvd::Sum), sum));
  EXPECT_TRUE(torch::equal(hvd::synchronize(hvd::allreduce_async(mine, "c", hvd::Sum)), sum));
  EXPECT_TRUE(
      torch::equal(hvd::synchronize(hvd::allreduce_async_(mine.clone(), "d", hvd::Sum)), sum));
  EXPECT_TRUE(Equal(hvd::grouped_allreduce({mine, mine}, "e", hvd::Sum), sum));
  EXPECT_TRUE(Equal(hvd::grouped_allreduce_({mine.clone()}, "f", hvd::Sum), sum));
  EXPECT_TRUE(Equal(hvd::synchronize(hvd::grouped_allreduce_async({mine}, "g", hvd::Sum)), sum));
  EXPECT_TRUE(
      Equal(hvd::synchronize(hvd::grouped_allreduce_async_({mine.clone()}, "h", hvd::Sum)), sum));
  EXPECT_TRUE(torch::equal(hvd::sparse_allreduce(mine.to_sparse(), "i", hvd::Sum).to_dense(), sum));
  EXPECT_TRUE(torch::equal(
      hvd::synchronize(hvd::sparse_allreduce_async(mine.to_sparse(), "j", hvd::Sum)).to_dense(),
      sum));

  const int64_t row = hvd::rank();
  const torch::Tensor part = scaled.slice(0, row, row + 1);
  EXPECT_TRUE(torch::equal(hvd::reducescatter(mine, "k", hvd::Sum, world, 2, 3), part));
  EXPECT_TRUE(torch::equal(
      hvd::synchronize(hvd::reducescatter_async(mine, "l", hvd::Sum, world, 2, 3)), part));
  EXPECT_TRUE(Equal(hvd::grouped_reducescatter({mine}, "m", hvd::Sum, world, 2, 3), part));
  EXPECT_TRUE(
      Equal(hvd::synchronize(hvd::grouped_reducescatter_async({mine}, "n", hvd::Sum, world, 2, 3)),
            part));

  const torch::Tensor reduced = hvd::reduce(mine, 1, "o", hvd::Sum, 2, 3, world);
  const torch::Tensor later = hvd::synchronize(hvd::reduce_async(mine, 1, "p", hvd::Sum, 2, 3));
  const torch::Tensor same = hvd::reduce_(mine.clone(), 1, "q", hvd::Sum, 2, 3);
  const torch::Tensor same_later =
      hvd::synchronize(hvd::reduce_async_(mine.clone(), 1, "r", hvd::Sum, 2, 3));
  if (hvd::rank() == 1) {
    EXPECT_TRUE(Equal({reduced, later, same, same_later}, scaled));
  }
}

RANKS_TEST(Positional, MovesTakeTheirArgumentsByPosition, 2) {
  const auto rank = static_cast<float>(hvd::rank());
  const hvd::ProcessSet world = {0};
  const torch::Tensor mine = Of({rank, 10 + rank}), roots = Of({1, 11}), all = Of({0, 10, 1, 11});
  EXPECT_TRUE(torch::equal(hvd::broadcast(mine, 1, "a", world), roots));
  EXPECT_TRUE(torch::equal(hvd::broadcast_(mine.clone(), 1, "b"), roots));
  EXPECT_TRUE(torch::equal(hvd::synchronize(hvd::broadcast_async(mine, 1, "c")), roots));
  EXPECT_TRUE(torch::equal(hvd::synchronize(hvd::broadcast_async_(mine.clone(), 1, "d")), roots));
  EXPECT_TRUE(torch::equal(hvd::allgather(mine, "e", world), all));
  EXPECT_TRUE(torch::equal(hvd::synchronize(hvd::allgather_async(mine, "f")), all));
  EXPECT_TRUE(Equal(hvd::grouped_allgather({mine}, "g"), all));
  EXPECT_TRUE(Equal(hvd::synchronize(hvd::grouped_allgather_async({mine}, "h")), all));
  const torch::Tensor gathered = hvd::gather(mine, 0, "i");
  const torch::Tensor later = hvd::synchronize(hvd::gather_async(mine, 0, "j"));
  if (hvd::rank() == 0) {
    EXPECT_TRUE(Equal({gathered, later}, all));
  }

  const torch::Tensor row = Of({1 + 10 * rank}), column = Of({10 * rank, 1 + 10 * rank});
  EXPECT_TRUE(torch::equal(hvd::scatter(mine, 1, {1, 1}, "k", world), row));
  EXPECT_TRUE(torch::equal(hvd::scatter(mine, 1, {}, "l"), row));
  EXPECT_TRUE(torch::equal(hvd::synchronize(hvd::scatter_async(mine, 1, {1, 1})), row));
  EXPECT_TRUE(torch::equal(hvd::alltoall(mine, {1, 1}), column));
  EXPECT_TRUE(torch::equal(hvd::alltoall(mine, torch::tensor({1, 1}), "m", world), column));
  EXPECT_TRUE(torch::equal(hvd::alltoall_with_splits(mine, {}, "n").first, column));
  EXPECT_TRUE(torch::equal(hvd::synchronize(hvd::alltoall_async(mine, {1, 1}, "o")), column));

  torch::Tensor got = torch::empty({2}), got_later = torch::empty({2});
  if (hvd::rank() == 0) {
    hvd::send(mine, 1, "p");
    hvd::synchronize(hvd::send_async(mine, 1, "q"));
  } else {
    hvd::recv_(got, 0, "p");
    hvd::synchronize(hvd::recv_async_(got_later, 0, "q"));
    EXPECT_TRUE(Equal({got, got_later}, Of({0, 10})));
  }
}

}  // namespace
