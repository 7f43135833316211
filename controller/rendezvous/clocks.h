// How far another host's clock is from ours: round trips over a connection, of which the quickest
// says most. For the timeline, which puts all ranks' events on rank 0's clock.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "controller/bus/link.h"
#include "core/base/clock.h"

namespace rueda {

// One round trip, by two clocks.
struct ClockSample {
  Nanos asked = 0;     // ours
  Nanos received = 0;  // theirs
  Nanos replied = 0;   // theirs
  Nanos answered = 0;  // ours
};

// The other clock is ours plus `offset`, give or take `uncertainty`.
struct ClockOffset {
  Nanos offset = 0;
  Nanos uncertainty = 0;
};

// From at least one sample. However long either way took, the truth is within the uncertainty, as
// long as both clocks go at one speed. PURE
ClockOffset EstimateOffset(absl::Span<const ClockSample> samples);

// The payloads of what a peer sends: a reading, into the sample's two times by its clock, and an
// offset. DATA_LOSS: no clock shows that. PURE
absl::Status UnpackReading(absl::string_view payload, ClockSample* sample);
absl::StatusOr<ClockOffset> UnpackOffset(absl::string_view payload);

// Block until the round trips are made, at most to `deadline`. At one end of the link: the other's
// clock as seen from here. At the other end, of several links at once: the answers. Nobody returns
// before all have compared: whoever went on would hear nothing from those who are still at it, and
// could take them for lost.
absl::StatusOr<ClockOffset> CompareClocks(Link* link, Nanos deadline);
absl::Status AnswerClocks(absl::Span<Link* const> links, Nanos deadline);

// Passes on what CompareClocks found, from a leader to a rank of its host.
void SendOffset(Link* link, const ClockOffset& offset);
absl::StatusOr<ClockOffset> WaitOffset(Link* link, Nanos deadline);

}  // namespace rueda
