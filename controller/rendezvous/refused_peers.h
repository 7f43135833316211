// Connections that were refused, for the log and for the error that a start may end with: they
// may be thousands a second, so the log has at most a line a second. PURE: what it says is logged
// by its owner.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "core/base/clock.h"

namespace rueda {

class RefusedPeers {
 public:
  // `from`: an address, or empty. Returns a line for the log, or nothing when there was one within
  // the last second.
  std::string Add(absl::string_view from, absl::string_view why, Nanos now);
  // A line for those that had none, if there are any.
  std::string Rest();
  // How many there were, and why the last was: to append to an error. Empty: there were none.
  std::string Summary() const;

 private:
  int64_t count_ = 0;
  int64_t logged_ = 0;
  Nanos next_line_ = 0;
  std::string last_;
};

}  // namespace rueda
