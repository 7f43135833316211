#pragma once

#include "test/bench/options.h"

namespace rueda::bench {

// Becomes the program in test/bench/peers that measures what --vs or --scaling asks for. It starts
// rueda_bench under ruedarun and the peers, alternating.
[[noreturn]] void HandOver(const Options& options);

}  // namespace rueda::bench
