#include "controller/rendezvous/host_voice.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "controller/protocol/codec.h"
#include "controller/rendezvous/hello_server.h"
#include "controller/rendezvous/meeting.h"
#include "core/base/status.h"

namespace rueda {
namespace {

// How long those of this host may take to hear the answer.
constexpr Nanos kPatience = 2 * kSecond;

}  // namespace

HostVoice::HostVoice(const SessionScope& scope, Rank self, int size, const VerdictBoard* board,
                     Complete complete)
    : scope_(scope),
      self_(self),
      size_(size),
      board_(board),
      complete_(std::move(complete)),
      ranks_(static_cast<size_t>(size - 1)) {
  std::iota(ranks_.begin(), ranks_.end(), 1);
}

absl::StatusOr<wire::Roster> HostVoice::Speak(const UniqueFd& door, std::unique_ptr<Link> up,
                                              const wire::Hello& mine, Nanos deadline) {
  up->Send(FrameType::kHello, mine.SerializeAsString());
  links_.emplace(0, std::move(up));
  Admission admission(
      ranks_, scope_, PeerNumber(size_), &links_, board_,
      [&](Link* from, const Frame& frame) { return Hear(&admission, from, frame); });
  absl::Status status;
  while (!answer_.has_value() && status.ok()) {
    status = MonotonicNow() < deadline
                 ? admission.Step(door, deadline)
                 : absl::DeadlineExceededError("rank 0 failed to start: no answer in time");
  }
  if (!answer_.has_value()) answer_ = AnswerTo(status, deadline);
  RUEDA_RETURN_IF_ERROR(Tell(*answer_, DeadlineAfter(MonotonicNow(), kPatience)));
  return *std::move(answer_);
}

void HostVoice::CallOff(const UniqueFd& door, const absl::Status& why) {
  Admission admission(ranks_, scope_, PeerNumber(size_), &links_, nullptr,
                      [](Link*, const Frame&) { return absl::OkStatus(); });
  const Nanos last_call = MonotonicNow() + kLastCall;
  // One that goes meanwhile is none to tell.
  while (MonotonicNow() < last_call && admission.Step(door, last_call).ok()) {
  }
  Tell(RosterOfError(why), DeadlineAfter(MonotonicNow(), kPatience)).IgnoreError();
}

absl::Status HostVoice::Hear(Admission* admission, Link* from, const Frame& frame) {
  return from->peer() == 0 ? HearRoot(admission, frame) : HearNeighbour(admission, from, frame);
}

absl::Status HostVoice::HearRoot(Admission* admission, const Frame& frame) {
  if (frame.type == FrameType::kRefused) {
    answer_ = RosterOfError(absl::FailedPreconditionError(frame.payload));
    return absl::OkStatus();
  }
  if (frame.type != FrameType::kRoster) {
    return absl::DataLossError("rank 0 failed to start: it sent something else than a roster");
  }
  wire::Roster roster;
  RUEDA_RETURN_IF_ERROR(ParseMessage(frame.payload, &roster));
  if (roster.has_refused() && roster.refused() != self_) {
    admission->Dismiss(roster.refused(), roster.error());
  } else {
    answer_ = std::move(roster);
  }
  return absl::OkStatus();
}

absl::Status HostVoice::HearNeighbour(Admission* admission, Link* from, const Frame& frame) {
  const Rank rank = from->peer();
  const absl::Status status = PassHelloOn(admission, rank, frame);
  return status.ok() ? status : StatusAt(absl::StrCat("rank ", rank, " failed to start"), status);
}

absl::Status HostVoice::PassHelloOn(Admission* admission, Rank rank, const Frame& frame) {
  RUEDA_ASSIGN_OR_RETURN(wire::Hello hello, HelloIn(frame));
  if (hello.rank() != rank) {
    return absl::DataLossError(absl::StrCat("it says that it is rank ", hello.rank()));
  }
  if (rank == self_) {
    admission->Dismiss(rank, TwoAre(rank));
    return absl::OkStatus();
  }
  RUEDA_RETURN_IF_ERROR(complete_(&hello));
  links_.at(0)->Send(FrameType::kHello, hello.SerializeAsString());
  return absl::OkStatus();
}

// Rank 0's last word, when this host can't go on; or the error itself.
wire::Roster HostVoice::AnswerTo(const absl::Status& error, Nanos deadline) {
  Link* const up = links_.at(0).get();
  up->Send(FrameType::kRoster, RosterOfError(error).SerializeAsString());
  wire::Roster roster;
  while (true) {
    const absl::StatusOr<Link::Received> received = WaitFrame(up, FrameType::kRoster, deadline);
    if (!received.ok() || !ParseMessage(received->frame.payload, &roster).ok()) {
      return RosterOfError(error);
    }
    if (!roster.has_refused()) return roster;
  }
}

absl::Status HostVoice::Tell(const wire::Roster& roster, Nanos deadline) {
  const std::string text = roster.SerializeAsString();
  std::vector<std::unique_ptr<Link>> links;
  for (auto& [rank, link] : links_) {
    if (rank == 0) continue;
    link->Send(FrameType::kRoster, text);
    links.push_back(std::move(link));
  }
  links_.clear();
  const absl::Status told = WaitFlushed(links, deadline);
  CloseGently(std::move(links), MonotonicNow() + kFarewellLimit);
  return told;
}

}  // namespace rueda
