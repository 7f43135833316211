// Lists of hosts as people write them: `-H a:4,b:4` and hostfiles. PURE
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/status.h"

namespace rueda {

struct HostSlots {
  std::string name;  // a host name or an address; an IPv6 address without its brackets
  int slots = 1;     // how many ranks it takes
  bool operator==(const HostSlots&) const = default;
};

// A name goes to other programs (ssh), so it can't be taken for an option or hold anything else
// than letters, digits and what addresses are written with. INVALID_ARGUMENT quotes `text`, which
// it is part of.
absl::Status CheckHostName(absl::string_view name, absl::string_view text);

// "a:4,b,[fd00::1]:2", in the order given; a host that is named again gets the slots too.
// INVALID_ARGUMENT, with what was found and what is expected.
absl::StatusOr<std::vector<HostSlots>> ParseHosts(absl::string_view text);
// Adds a host, or slots to one that is there. `text`: where it stands, for the error.
absl::Status AddHost(const HostSlots& host, absl::string_view text, std::vector<HostSlots>* hosts);

// A line a host: "a slots=4", "a:4" or "a"; '#' begins a comment. Errors begin with the line's
// number.
absl::StatusOr<std::vector<HostSlots>> ParseHostfile(absl::string_view text);

// Those of `hosts` that `ranks` ranks go to when each host is filled before the next is begun; the
// last one with the slots that are used. INVALID_ARGUMENT: there are not as many slots.
absl::StatusOr<std::vector<HostSlots>> FillHosts(absl::Span<const HostSlots> hosts, int ranks);

}  // namespace rueda
