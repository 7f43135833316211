// PURE
#include "controller/protocol/lengths.h"

#include <cstdint>

#include "controller/protocol/rueda.pb.h"
#include "core/base/check.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace rueda {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr MessageField kSignature[] = {{wire::Signature::kPartsFieldNumber, {}}};
constexpr MessageField kSpec[] = {{wire::Spec::kSignatureFieldNumber, kSignature}};

constexpr MessageField kAnnouncement[] = {{wire::Announcement::kSpecFieldNumber, kSpec}};
constexpr MessageField kEvent[] = {{wire::Event::kAnnouncedFieldNumber, kAnnouncement},
                                   {wire::Event::kWaitedFieldNumber, {}},
                                   {wire::Event::kDoneFieldNumber, {}},
                                   {wire::Event::kLeaveFieldNumber, {}},
                                   {wire::Event::kExpireFieldNumber, {}},
                                   {wire::Event::kBlockedFieldNumber, {}},
                                   {wire::Event::kAskedFieldNumber, {}}};
constexpr MessageField kEvents[] = {{wire::Events::kEventsFieldNumber, kEvent}};

constexpr MessageField kDefine[] = {{wire::Define::kSpecFieldNumber, kSpec}};
constexpr MessageField kOrder[] = {{wire::Order::kBatchFieldNumber, {}},
                                   {wire::Order::kPairFieldNumber, {}},
                                   {wire::Order::kAbsentFieldNumber, {}}};
constexpr MessageField kReject[] = {{wire::Reject::kSpecFieldNumber, kSpec}};
constexpr MessageField kTold[] = {{wire::Told::kSpecFieldNumber, kSpec}};
constexpr MessageField kPlanItem[] = {
    {wire::PlanItem::kDefineFieldNumber, kDefine}, {wire::PlanItem::kOrderFieldNumber, kOrder},
    {wire::PlanItem::kRejectFieldNumber, kReject}, {wire::PlanItem::kSetAddedFieldNumber, {}},
    {wire::PlanItem::kSetRemovedFieldNumber, {}},  {wire::PlanItem::kJoinedFieldNumber, {}},
    {wire::PlanItem::kToldFieldNumber, kTold}};
constexpr MessageField kPlan[] = {{wire::Plan::kItemsFieldNumber, kPlanItem}};

constexpr MessageField kHello[] = {{wire::Hello::kAgreedFieldNumber, {}}};
constexpr MessageField kToProcess[] = {{wire::ToProcess::kRecordFieldNumber, {}},
                                       {wire::ToProcess::kChangeFieldNumber, {}},
                                       {wire::ToProcess::kNothingKeptFieldNumber, {}},
                                       {wire::ToProcess::kKeptFieldNumber, {}}};
constexpr MessageField kFromProcess[] = {{wire::FromProcess::kAskFieldNumber, {}},
                                         {wire::FromProcess::kKeepFieldNumber, {}},
                                         {wire::FromProcess::kFetchFieldNumber, {}}};
constexpr MessageField kRoster[] = {{wire::Roster::kPlacesFieldNumber, {}}};

// What travels by itself.
constexpr struct {
  absl::string_view type;
  absl::Span<const MessageField> inside;
} kTypes[] = {{"rueda.wire.Announcement", kAnnouncement},
              {"rueda.wire.Events", kEvents},
              {"rueda.wire.Plan", kPlan},
              {"rueda.wire.Hello", kHello},
              {"rueda.wire.Roster", kRoster},
              {"rueda.wire.Failure", {}},
              {"rueda.wire.ClockReading", {}},
              {"rueda.wire.ClockOffset", {}},
              {"rueda.wire.StoreSet", {}},
              {"rueda.wire.StoreGet", {}},
              {"rueda.wire.StoreValue", {}},
              {"rueda.wire.Ask", {}},
              {"rueda.wire.FromProcess", kFromProcess},
              {"rueda.wire.ToProcess", kToProcess}};

const MessageField* Find(absl::Span<const MessageField> fields, uint32_t tag) {
  if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
    return nullptr;
  }
  for (const MessageField& field : fields) {
    if (field.number == WireFormatLite::GetTagFieldNumber(tag)) return &field;
  }
  return nullptr;
}

bool Fit(absl::Span<const MessageField> fields, CodedInputStream* in) {
  while (const uint32_t tag = in->ReadTag()) {
    const MessageField* field = Find(fields, tag);
    if (field == nullptr) {
      if (!WireFormatLite::SkipField(in, tag)) return false;
      continue;
    }
    int length = 0;
    if (!in->ReadVarintSizeAsInt(&length) || length > in->BytesUntilLimit()) return false;
    const CodedInputStream::Limit outer = in->PushLimit(length);
    if (!Fit(field->inside, in)) return false;
    in->PopLimit(outer);
  }
  return in->ConsumedEntireMessage();
}

}  // namespace

bool LengthsFit(absl::Span<const MessageField> fields, absl::string_view bytes) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  in.PushLimit(static_cast<int>(bytes.size()));
  return Fit(fields, &in);
}

bool LengthsFit(absl::string_view type, absl::string_view bytes) {
  for (const auto& known : kTypes) {
    if (known.type == type) return LengthsFit(known.inside, bytes);
  }
  RUEDA_CHECK(false) << "add " << type << " to the types that travel by themselves";
  return false;
}

}  // namespace rueda
