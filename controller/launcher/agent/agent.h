// `ruedarun --agent`, which ruedarun starts on each host of a job on several: owns the ranks there.
// It takes its orders from standard input, the job's secret among them, and reports over standard
// output (agent.proto); when its input ends, ruedarun is gone, and its ranks are killed.
#pragma once

namespace rueda {

// The process's main function: its exit status. The standard descriptors are open.
int RunAgent();

}  // namespace rueda
