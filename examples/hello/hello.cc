// The smallest program: every rank brings a vector, and all get the average.
//
//     ruedarun -np 2 hello
#include <rueda/rueda.hpp>

#include <cstdio>
#include <vector>

int main() try {
  rueda::init();
  std::vector<float> gradient(4, static_cast<float>(rueda::rank()));
  rueda::allreduce_(gradient, {.name = "gradient"});
  std::printf("rank %d of %d: average %.1f\n", rueda::rank(), rueda::size(), gradient[0]);
  rueda::shutdown();
  return 0;
} catch (const rueda::Error& error) {
  std::fprintf(stderr, "hello: %s\n", error.what());
  return 1;
}
