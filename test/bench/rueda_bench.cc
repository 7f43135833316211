// rueda_bench: how fast the operations are, in the manner of the OSU benchmarks. Run it under
// ruedarun; or by itself with --vs or --scaling.
//
// Every figure is for the full thing: a named operation, negotiated and checked.
#include "rueda/rueda.h"
#include "test/bench/bench.h"
#include "test/bench/hand_over.h"
#include "test/bench/modes.h"
#include "test/bench/options.h"
#include "test/bench/support.h"

namespace {

using namespace rueda::bench;

void Run(Bench& bench) {
  const Options& options = bench.options();
  if (options.cycles > 0) {
    Cycles(bench, options.cycles);
  } else if (options.idle_seconds > 0) {
    Idle(bench, options.idle_seconds);
  } else if (options.late_seconds > 0) {
    Late(bench, options.late_seconds);
  } else if (options.step.layers > 0) {
    Step(bench, options.step);
  } else if (!options.many.empty()) {
    for (const auto& [count, bytes] : options.many) Many(bench, count, bytes);
  } else if (options.op == "barrier") {
    Blocking(bench, 4);
  } else if (options.bytes.empty()) {
    for (const size_t bytes : {4, 256, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20,
                               16 << 20, 64 << 20, 256 << 20}) {
      Blocking(bench, bytes);
    }
  } else {
    for (const size_t bytes : options.bytes) Blocking(bench, bytes);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = ParseOptions(argc, argv);
  if (!options.vs.empty() || !options.scaling.empty()) HandOver(options);
  rueda_context* const context = Init(nullptr);
  Bench bench(context, options);
  Run(bench);
  Check(rueda_shutdown(context));
  rueda_context_destroy(context);
  return 0;
}
