// Memory for a log of some writers, which a job would have in shared memory.
#pragma once

#include <vector>

#include "controller/bus/host_log.h"

namespace rueda::micro {

class LogMemory {
 public:
  explicit LogMemory(int writers) : lines_((Layout(writers).bytes() + 63) / 64) {}

  static LogLayout Layout(int writers) {
    LogLayout layout;
    layout.writers = writers;
    return layout;
  }
  void* data() { return lines_.data(); }

 private:
  struct alignas(64) Line {
    char bytes[64] = {};
  };
  std::vector<Line> lines_;
};

}  // namespace rueda::micro
