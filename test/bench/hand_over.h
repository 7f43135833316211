#pragma once

#include "test/bench/options.h"

namespace rueda::bench {

// Becomes the program in test/bench/peers that measures what --vs or --scaling asks for: it starts
// rueda_bench under ruedarun, and the peers, by turns.
[[noreturn]] void HandOver(const Options& options);

}  // namespace rueda::bench
