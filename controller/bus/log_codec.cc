#include "controller/bus/log_codec.h"

#include "absl/strings/str_cat.h"
#include "controller/protocol/codec.h"

namespace rueda {
namespace {

enum Kind : uint8_t {
  kAnnounceId = kAnnounceIdWord,
  kAnnounce = 2,  // payload: wire::Announcement
  kWaited = 3,    // field: id; low: sequence
  kDone = 4,      // field: lane; low: count
  kLeave = 5,
  kExpire = 6,   // field: id; low: sequence
  kPlan = 7,     // payload: wire::Plan
  kBlocked = 8,  // field: level; low: question
  kAsked = 9,
  kWished = 10,  // field: bits
};

}  // namespace

absl::StatusOr<bool> AppendEvent(const ControlEvent& event, HostLog* log) {
  if (const auto* announced = std::get_if<Announced>(&event.what)) {
    const Announcement& announcement = announced->announcement;
    if (announcement.id != kNoTensor && announcement.extras.empty()) {
      return log->Append({kAnnounceId, announcement.waited, announcement.id, announcement.done});
    }
    wire::Announcement message;
    EncodeAnnouncement(announcement, &message);
    const std::string payload = message.SerializeAsString();
    if (payload.size() > log->payload_bytes_max()) {
      return absl::InternalError(
          absl::StrCat("an announcement of ", payload.size(), " bytes does not fit the log"));
    }
    return log->Append({kAnnounce}, payload);
  }
  if (const auto* waited = std::get_if<Waited>(&event.what)) {
    return log->Append({kWaited, false, waited->id, waited->sequence});
  }
  if (const auto* done = std::get_if<Done>(&event.what)) {
    return log->Append({kDone, false, static_cast<uint32_t>(done->lane), done->count});
  }
  if (const auto* expire = std::get_if<Expire>(&event.what)) {
    return log->Append({kExpire, false, expire->id, expire->sequence});
  }
  if (const auto* blocked = std::get_if<Blocked>(&event.what)) {
    return log->Append({kBlocked, false, blocked->level, blocked->question});
  }
  if (const auto* wished = std::get_if<Wished>(&event.what)) {
    return log->Append({kWished, false, wished->bits});
  }
  return log->Append({std::holds_alternative<Asked>(event.what) ? kAsked : kLeave});
}

bool AppendPlan(absl::string_view packed, HostLog* log) {
  return log->Append({kPlan}, packed);
}

bool IsPlan(const LogEntry& entry) {
  return entry.word.kind == kPlan;
}

absl::StatusOr<ControlEvent> DecodeLogEvent(const LogEntry& entry, absl::Span<const Rank> ranks) {
  const LogWord& word = entry.word;
  if (entry.has_payload != (word.kind == kAnnounce)) {
    return absl::InvalidArgumentError(
        absl::StrCat("log word of kind ", static_cast<int>(word.kind),
                     entry.has_payload ? " with a payload" : " without its payload"));
  }
  ControlEvent event;
  event.rank = ranks[entry.writer];
  switch (word.kind) {
    case kAnnounceId: {
      Announced announced;
      announced.announcement.id = word.field;
      announced.announcement.waited = word.flag;
      announced.announcement.done = word.low;
      event.what = std::move(announced);
      return event;
    }
    case kAnnounce: {
      wire::Announcement message;
      RUEDA_RETURN_IF_ERROR(ParseMessage(entry.payload, &message));
      Announced announced;
      RUEDA_ASSIGN_OR_RETURN(announced.announcement, DecodeAnnouncement(message));
      event.what = std::move(announced);
      return event;
    }
    case kWaited:
      event.what = Waited{word.field, word.low};
      return event;
    case kDone:
      event.what = Done{static_cast<SetId>(word.field), word.low};
      return event;
    case kLeave:
      event.what = Leave{};
      return event;
    case kExpire:
      event.what = Expire{word.field, word.low};
      return event;
    case kBlocked:
      if (word.field > Blocked::kStill) {
        return absl::InvalidArgumentError(absl::StrCat("log word: blocked at level ", word.field));
      }
      event.what = Blocked{static_cast<Blocked::Level>(word.field), word.low};
      return event;
    case kAsked:
      event.what = Asked{};
      return event;
    case kWished:
      if (word.field > UINT8_MAX) {
        return absl::InvalidArgumentError(absl::StrCat("log word: a wish for ", word.field));
      }
      event.what = Wished{static_cast<uint8_t>(word.field)};
      return event;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("log word of unknown kind ", static_cast<int>(word.kind)));
  }
}

}  // namespace rueda
