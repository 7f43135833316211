// Events and plans as entries of the host log. An event whose tensor has an id is one word.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "controller/bus/host_log.h"
#include "controller/negotiation/messages.h"

namespace rueda {

// False: no room in the log.
absl::StatusOr<bool> AppendEvent(const ControlEvent& event, HostLog* log);
// `packed`: a serialized wire::Plan.
bool AppendPlan(absl::string_view packed, HostLog* log);

// Whether the entry is a plan (its payload a wire::Plan) rather than an event.
bool IsPlan(const LogEntry& entry);
// The kind of the word that announces an id. Field: id; low: done; flag: waited.
inline constexpr uint8_t kAnnounceIdWord = 1;

// What most words are: the announcement of an id without extras. None: the entry is something else.
struct PlainAnnouncement {
  TensorId id;
  bool waited;
};
inline std::optional<PlainAnnouncement> AsPlainAnnouncement(const LogEntry& entry) {
  if (entry.word.kind != kAnnounceIdWord || entry.has_payload) return std::nullopt;
  return PlainAnnouncement{entry.word.field, entry.word.flag};
}

// `ranks`: the world ranks of the log's writers, by index.
absl::StatusOr<ControlEvent> DecodeLogEvent(const LogEntry& entry, absl::Span<const Rank> ranks);

}  // namespace rueda
