// What is made and compared for every submission or every first use of a name.
#include "test/bench/micro/micro.h"
#include "test/bench/micro/specs.h"

namespace rueda::micro {

void AddSpecs() {
  Add("spec/make", [] {
    return [signature = Gradient()] {
      benchmark::DoNotOptimize(MakeSpec(kWorldSet, "layer0.weight", signature));
    };
  });
  // Of 16, as a comparison of names costs a little more or less where they lie in memory.
  Add("spec/equal/16", [] {
    return [a = Gradients(16), b = Gradients(16)] {
      for (size_t i = 0; i < a.size(); ++i) {
        bool equal = *a[i] == *b[i];
        benchmark::DoNotOptimize(equal);
      }
    };
  });
}

}  // namespace rueda::micro
