// micro_bench: how long the hot pure parts take, one by one, and under valgrind how many
// instructions (instructions.py). The options are Google Benchmark's.
#include <thread>

#include "hwy/targets.h"
#include "test/bench/micro/micro.h"

int main(int argc, char** argv) {
  using namespace rueda::micro;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  // As in a job, which has threads: from now on shared pointers count with atomic instructions, and
  // malloc locks.
  std::thread([] {}).join();
  const int64_t targets = hwy::SupportedTargets();  // the best one is the lowest bit
  benchmark::AddCustomContext("vectors", hwy::TargetName(targets & -targets));
  AddSpecs();
  AddMember();
  AddCoordinator();
  AddLog();
  AddNegotiation();
  AddPlanner();
  AddKernels();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
