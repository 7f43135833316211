// A whole job in one thread under virtual time: the product's own members, coordinators,
// aggregators, logs and buses, with a made-up clock, network and data plane. One seed is one run.
//
// What is made up: how long things take. A turn of a rank, a wake-up, a message and a batch each
// get a random delay; ranks pause at random. A rank that has nothing to do sleeps until the product
// wakes it, so a wake-up that is missing shows as a job that never ends.
//
// What is checked (Report::errors, empty when all is well):
//   agreement   all members of a set execute the same batches in the same order
//   validity    what is executed was submitted by every member that has not joined, each once, with
//               one signature, and everybody knows how many rows each brings
//   uniformity  an operation ends alike on every member that submitted it, in the same words
//   liveness    everything that was submitted ends, and all ranks shut down
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace rueda::sim {

// A defect put between the product and what carries its messages, once, on the last rank: the
// checks must see it.
enum class Defect {
  kNone,
  kDropAnnouncement,  // one announcement is lost: liveness
  kReorderPlan,       // two batches of one lane change places: agreement
  kChangeRejection,   // one rejection says something else: uniformity
};

struct Options {
  int ranks = 4;
  int ranks_per_host = 0;  // 0: all on one host, sharing one log; 1: no two share a log
  int fan_out = 32;        // of the tree of leaders
  uint64_t seed = 1;
  int steps = 10;
  int tensors_per_step = 20;
  int process_sets = 2;          // besides the world; they come and go
  double mismatch_share = 0.02;  // of the tensors: one rank submits another shape
  int log_words = 0;             // of a host's log; 0: as the product
  int64_t bucket_bytes = 1 << 16;
  int tensor_ids_max = 0;  // 0: as the product
  Defect defect = Defect::kNone;
};

struct Report {
  std::vector<std::string> errors;
  uint64_t digest = 0;      // of everything that happened, in order
  uint64_t operations = 0;  // ended, over all ranks
  uint64_t rejected = 0;    // of those, failed
  uint64_t batches = 0;     // ordered on the world's lane
  uint64_t turns = 0;
  uint64_t messages = 0;  // between hosts
  uint64_t message_bytes = 0;
  uint64_t root_messages = 0;  // of those, rank 0's: to it and from it
  uint64_t root_message_bytes = 0;
  double virtual_seconds = 0;
  bool defect_done = false;  // the defect that was asked for has happened
};

Report Run(const Options& options);

}  // namespace rueda::sim
