// A training job of any size in one thread under virtual time: every rank announces the same
// tensors in each step, nearly in the same order, and waits for them. For measuring: the product's
// own classes carry the negotiation (members, logs, buses, aggregators, the tree of leaders, the
// coordinator, the handshakes and messages between leaders), and little is made up around them.
// What goes wrong is simulated in simulation.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rueda::sim {

struct TrainingOptions {
  int ranks = 64;
  int ranks_per_host = 8;  // divides `ranks`, which are more
  int fan_out = 32;        // of the tree of leaders
  uint64_t seed = 1;
  int steps = 10;
  int tensors = 160;
};

// Messages of rank 0, to it and from it, with their frames.
struct Traffic {
  uint64_t messages = 0;
  uint64_t bytes = 0;
};

struct TrainingReport {
  std::vector<std::string> errors;  // empty: all ranks executed the same, and all of it
  uint64_t digest = 0;              // of what every rank executed, in order
  uint64_t operations = 0;          // ended, over all ranks
  uint64_t batches = 0;
  uint64_t turns = 0;
  int connections = 0;  // of rank 0, once all have taken their places
  int depth = 0;        // of the tree
  Traffic boot;         // of the handshakes
  Traffic first_step;   // in which names travel
  Traffic later_steps;  // all of them
  Traffic shutdown;     // from when the first rank leaves
  double virtual_seconds = 0;
};

TrainingReport RunTraining(const TrainingOptions& options);

}  // namespace rueda::sim
