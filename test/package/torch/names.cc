// A program outside the tree that uses the adapter, and nothing of torch's by itself.
#include <rueda/rueda.hpp>

#include <cstdio>
#include <string>
#include <vector>

namespace rueda::libtorch {
std::vector<std::string> strategy_names();  // rueda/strategy.hpp, without torch's headers
}

int main() {
  rueda::init();
  const int rank = rueda::rank();
  rueda::shutdown();
  const bool right = !rueda::libtorch::strategy_names().empty();
  std::printf("rank %d: %s\n", rank, right ? "right" : "wrong");
  return right ? 0 : 1;
}
