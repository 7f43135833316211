// A LibTorch program outside the tree: averages a tensor over two ranks and checks the result.
#include <ATen/ops/arange.h>
#include <rueda/torch.hpp>

#include <cstdio>

namespace hvd = rueda::libtorch;

int main() {
  hvd::init();
  const int rank = hvd::rank();
  const at::Tensor mine = at::arange(2 * rank, 1000 + 2 * rank, at::kFloat);
  const at::Tensor average = hvd::allreduce(mine, {.name = "tensor"});
  const bool right = hvd::size() == 2 && average.equal(at::arange(1, 1001, at::kFloat));
  hvd::shutdown();
  std::printf("rank %d: %s\n", rank, right ? "right" : "wrong");
  return right ? 0 : 1;
}
