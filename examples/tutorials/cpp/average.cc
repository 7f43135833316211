// Every rank brings three numbers, and all ranks get the average.
//
//     ruedarun -np 2 build/average
#include <rueda/rueda.hpp>

#include <cstdio>
#include <vector>

int main() {
  rueda::init();
  std::vector<float> numbers(3, static_cast<float>(rueda::rank()));
  rueda::allreduce_(numbers, {.name = "numbers"});
  std::printf("rank %d of %d: average %.1f\n", rueda::rank(), rueda::size(), numbers[0]);
  rueda::shutdown();
}
