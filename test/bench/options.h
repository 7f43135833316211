// rueda_bench's options.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace rueda::bench {

// A synthetic training step: layers of WIDTH x WIDTH weights, fed with `batch` samples on each
// rank.
struct StepShape {
  int layers = 0;
  int width = 0;
  int batch = 0;
};

struct Options {
  std::string op = "allreduce";
  std::vector<size_t> bytes;  // empty: those of the usage
  std::vector<std::pair<int, size_t>> many;
  std::vector<std::string> dtypes;       // empty: float32
  std::vector<std::string> compressors;  // empty: none
  bool registered = false;
  bool cuda = false;  // tensors on the device of the rank
  int iterations = 0;
  int cycles = 0;
  double idle_seconds = 0;
  double late_seconds = 0;
  std::string timeline;
  StepShape step;
  bool json = false;

  // For the programs that start rueda_bench themselves, which check them; empty: not given.
  std::string vs;
  std::string scaling;
  std::string np;
  std::string rounds;
  std::string results;
  std::string plot;
  std::string peers_dir;
};

// Its rueda_kind; -1: none of those that are timed.
int KindOf(const std::string& operation);

// Ends the program when they make no sense.
Options ParseOptions(int argc, char** argv);

}  // namespace rueda::bench
