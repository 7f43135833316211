// PURE
#include "controller/rendezvous/refused_peers.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace rueda {

std::string RefusedPeers::Add(absl::string_view from, absl::string_view why, Nanos now) {
  ++count_;
  last_ = absl::StrCat(from.empty() ? "" : absl::StrCat("from ", from, ": "), why);
  if (now < next_line_) return "";
  next_line_ = DeadlineAfter(now, kSecond);
  const int64_t others = count_ - 1 - std::exchange(logged_, count_);
  return absl::StrCat("start: refused a connection, ", last_,
                      others > 0 ? absl::StrCat(" (and ", others, " others before it)") : "");
}

std::string RefusedPeers::Rest() {
  const int64_t others = count_ - std::exchange(logged_, count_);
  return others > 0 ? absl::StrCat("start: refused ", others, " more connections, the last ", last_)
                    : "";
}

std::string RefusedPeers::Summary() const {
  if (count_ == 0) return "";
  return absl::StrCat("; ", count_, count_ == 1 ? " connection was" : " connections were",
                      " refused, the last ", last_);
}

}  // namespace rueda
