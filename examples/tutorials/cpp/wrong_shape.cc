// A mistake: rank 1 brings one number more than rank 0. Both get the same error, and go on.
//
//     ruedarun -np 2 build/wrong_shape
#include <rueda/rueda.hpp>

#include <cstddef>
#include <cstdio>
#include <vector>

int main() {
  rueda::init();
  std::vector<float> numbers(3 + static_cast<std::size_t>(rueda::rank()));
  try {
    rueda::allreduce_(numbers, {.name = "numbers"});
  } catch (const rueda::Error& error) {
    std::printf("%s\n", error.what());
  }
  numbers.resize(3);
  rueda::allreduce_(numbers, {.name = "numbers"});
  std::printf("rank %d goes on\n", rueda::rank());
  rueda::shutdown();
}
