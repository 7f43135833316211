// Between the values of controller/negotiation and the messages of rueda.proto. Decoding trusts
// nothing: sizes, enums, names and shapes are checked, and a message that fails is INVALID_ARGUMENT
// with the reason. PURE
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "controller/negotiation/messages.h"
#include "controller/protocol/rueda.pb.h"
#include "core/base/status.h"

namespace rueda {

// Parses `bytes` into `message`: length-capped, no length in it false, nested no deeper than the
// library allows (100).
absl::Status ParseMessage(absl::string_view bytes, google::protobuf::MessageLite* message);

void EncodeAnnouncement(const Announcement& announcement, wire::Announcement* out);
absl::StatusOr<Announcement> DecodeAnnouncement(const wire::Announcement& in);

void EncodeEvent(const ControlEvent& event, wire::Event* out);
absl::StatusOr<ControlEvent> DecodeEvent(const wire::Event& in);

void EncodePlanItem(const PlanItem& item, wire::PlanItem* out);
absl::StatusOr<PlanItem> DecodePlanItem(const wire::PlanItem& in);

// Serialized Events and Plans, split where one would exceed `bytes_max`.
std::vector<std::string> PackEvents(absl::Span<const ControlEvent> events, size_t bytes_max);
absl::Status UnpackEvents(absl::string_view bytes, std::vector<ControlEvent>* events);
std::vector<std::string> PackPlan(const Plan& plan, size_t bytes_max);
absl::Status UnpackPlan(absl::string_view bytes, Plan* plan);

}  // namespace rueda
