// A C++ program outside the tree: averages a vector over two ranks and checks the result.
#include <rueda/rueda.hpp>

#include <cstdio>
#include <vector>

namespace hvd = rueda;

int main() {
  hvd::init();
  const int rank = hvd::rank();
  std::vector<float> gradient(1000);
  for (int i = 0; i < 1000; ++i) gradient[i] = static_cast<float>(i + 2 * rank);
  hvd::allreduce_(gradient, {.name = "gradient"});
  bool right = hvd::size() == 2;
  for (int i = 0; i < 1000; ++i) right = right && gradient[i] == static_cast<float>(i + 1);
  hvd::shutdown();
  std::printf("rank %d: %s\n", rank, right ? "right" : "wrong");
  return right ? 0 : 1;
}
