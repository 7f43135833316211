// The job that hostile bytes are aimed at: what the fuzz target reads with, the corpus is made for.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"
#include "controller/bus/host_log.h"
#include "controller/negotiation/coordinator.h"

namespace rueda {

inline constexpr int kFuzzWorld = 4;

inline CoordinatorOptions FuzzJob() {
  CoordinatorOptions options;
  options.world_size = kFuzzWorld;
  options.tensor_ids_max = 8;
  options.stall_timeout = 60 * kSecond;
  options.process_sets = {{1, 3}};
  static const auto leaders =
      std::make_shared<const LeaderTree>(std::vector<std::vector<Rank>>{{0, 1}, {2}, {3}}, 1);
  options.leaders = leaders;
  return options;
}

// The memory of an announcement log of ranks 0 and 1, small enough that rings go round.
class FuzzLog {
 public:
  explicit FuzzLog(absl::string_view content = "") : lines_((Layout().bytes() + 63) / 64) {
    memcpy(lines_.data(), content.data(), std::min(content.size(), Layout().bytes()));
  }

  HostLog Open(int self) { return HostLog(lines_.data(), Layout(), self); }
  absl::string_view content() const {
    return {reinterpret_cast<const char*>(lines_.data()), Layout().bytes()};
  }

 private:
  struct alignas(64) Line {
    char bytes[64];
  };

  static LogLayout Layout() {
    LogLayout layout;
    layout.writers = 2;
    layout.words = 16;
    layout.side_bytes = 512;
    return layout;
  }

  std::vector<Line> lines_;
};

}  // namespace rueda
