// What rueda_bench can measure. Each is called on every rank of the bench's context.
#pragma once

#include <cstddef>

#include "test/bench/bench.h"

namespace rueda::bench {

// The operation that the options name, on `bytes` of each rank, of each dtype that they name.
void Blocking(Bench& bench, size_t bytes);

// `count` asynchronous allreduces of `bytes` each, submitted and waited for as one.
void Many(Bench& bench, int count, size_t bytes);

// So often inits and shuts down one more context of all ranks.
void Cycles(Bench& bench, int count);

// What a job costs that has nothing to do.
void Idle(Bench& bench, double seconds);

// What waiting for rank 0, which comes so late, costs the others.
void Late(Bench& bench, double seconds);

// A training step, with and without its communication.
void Step(Bench& bench, const StepShape& shape);

}  // namespace rueda::bench
