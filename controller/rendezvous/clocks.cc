#include "controller/rendezvous/clocks.h"

#include <vector>

#include "controller/protocol/codec.h"
#include "controller/protocol/rueda.pb.h"
#include "core/base/check.h"

namespace rueda {
namespace {

// The quickest of so many is about as quick as the network can be. On a slow one fewer do: none
// begins after so long.
constexpr size_t kRoundTripsMax = 16;
constexpr Nanos kRoundTripsUntil = 50 * kMillisecond;
// What is sent once all samples are taken; before, a question is empty.
constexpr char kCompared[] = "compared";
// No clock shows more, nor do two differ by more: sums of a few don't overflow.
constexpr Nanos kTimeMax = kForever / 8;

bool Sane(Nanos time) {
  return -kTimeMax < time && time < kTimeMax;
}

}  // namespace

ClockOffset EstimateOffset(absl::Span<const ClockSample> samples) {
  RUEDA_CHECK(!samples.empty());
  ClockOffset best;
  Nanos shortest = kForever;
  for (const ClockSample& sample : samples) {
    // What it spent on its way, there and back.
    const Nanos way = (sample.answered - sample.asked) - (sample.replied - sample.received);
    if (way >= shortest) continue;
    shortest = way;
    best.offset = ((sample.received - sample.asked) + (sample.replied - sample.answered)) / 2;
    best.uncertainty = (way + 1) / 2;
  }
  return best;
}

absl::StatusOr<ClockOffset> CompareClocks(Link* link, Nanos deadline) {
  std::vector<ClockSample> samples;
  const Nanos begin = MonotonicNow();
  while (samples.empty() ||
         (samples.size() < kRoundTripsMax && MonotonicNow() < begin + kRoundTripsUntil)) {
    ClockSample& sample = samples.emplace_back();
    sample.asked = MonotonicNow();
    link->Send(FrameType::kClock, "");
    RUEDA_ASSIGN_OR_RETURN(const Link::Received received,
                           WaitFrame(link, FrameType::kClock, deadline));
    sample.answered = MonotonicNow();
    RUEDA_RETURN_IF_ERROR(UnpackReading(received.frame.payload, &sample));
  }
  link->Send(FrameType::kClock, kCompared);
  RUEDA_RETURN_IF_ERROR(WaitFrame(link, FrameType::kClock, deadline).status());
  return EstimateOffset(samples);
}

absl::Status UnpackReading(absl::string_view payload, ClockSample* sample) {
  wire::ClockReading reading;
  RUEDA_RETURN_IF_ERROR(ParseMessage(payload, &reading));
  sample->received = reading.received();
  sample->replied = reading.replied();
  if (!Sane(sample->received) || !Sane(sample->replied) || sample->replied < sample->received) {
    return absl::DataLossError("a peer's clock shows nonsense");
  }
  return absl::OkStatus();
}

absl::Status AnswerClocks(absl::Span<Link* const> links, Nanos deadline) {
  const auto answer = [](Link* link, const Frame& question) {
    if (question.payload == kCompared) return true;
    wire::ClockReading reading;
    reading.set_received(MonotonicNow());
    reading.set_replied(reading.received());
    link->Send(FrameType::kClock, reading.SerializeAsString());
    return false;
  };
  RUEDA_RETURN_IF_ERROR(WaitFrames(links, FrameType::kClock, answer, deadline));
  for (Link* const link : links) link->Send(FrameType::kClock, "");
  for (Link* const link : links) RUEDA_RETURN_IF_ERROR(WaitFlushed(link, deadline));
  return absl::OkStatus();
}

void SendOffset(Link* link, const ClockOffset& offset) {
  wire::ClockOffset message;
  message.set_offset(offset.offset);
  message.set_uncertainty(offset.uncertainty);
  link->Send(FrameType::kClock, message.SerializeAsString());
}

absl::StatusOr<ClockOffset> WaitOffset(Link* link, Nanos deadline) {
  RUEDA_ASSIGN_OR_RETURN(const Link::Received received,
                         WaitFrame(link, FrameType::kClock, deadline));
  return UnpackOffset(received.frame.payload);
}

absl::StatusOr<ClockOffset> UnpackOffset(absl::string_view payload) {
  wire::ClockOffset message;
  RUEDA_RETURN_IF_ERROR(ParseMessage(payload, &message));
  if (!Sane(message.offset()) || !Sane(message.uncertainty())) {
    return absl::DataLossError("a leader's clock shows nonsense");
  }
  return ClockOffset{message.offset(), message.uncertainty()};
}

}  // namespace rueda
