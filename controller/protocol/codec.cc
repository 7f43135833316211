// PURE
#include "controller/protocol/codec.h"

#include <google/protobuf/arena.h>

#include "absl/strings/str_cat.h"
#include "controller/protocol/lengths.h"
#include "core/base/limits.h"
#include "core/tensor/compression.h"

namespace rueda {
namespace {

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed message: ", what));
}

absl::Status DecodeRanks(const google::protobuf::RepeatedField<int32_t>& in,
                         std::vector<Rank>* ranks) {
  if (in.size() > kRanksMax) return Bad("too many ranks");
  for (const Rank rank : in) {
    if (rank < 0 || rank >= kRanksMax || (!ranks->empty() && rank <= ranks->back())) {
      return Bad("list of ranks");
    }
    ranks->push_back(rank);
  }
  return absl::OkStatus();
}

absl::Status CheckSet(int32_t set) {
  return set >= 0 && set < kProcessSetsMax ? absl::OkStatus() : Bad("process set");
}

absl::Status CheckRank(int32_t rank) {
  return rank >= 0 && rank < kRanksMax ? absl::OkStatus() : Bad("rank");
}

void EncodeSpec(const TensorSpec& spec, wire::Spec* out) {
  out->set_set(spec.set);
  out->set_name(spec.name);
  wire::Signature* signature = out->mutable_signature();
  const auto& [kind, reduce_op, root, peer, device, priority, compression] =
      spec.signature.traits();
  signature->set_kind(static_cast<uint32_t>(kind));
  signature->set_reduce_op(static_cast<uint32_t>(reduce_op));
  signature->set_root(root);
  signature->set_peer(peer);
  signature->set_device(static_cast<uint32_t>(device));
  signature->set_priority(static_cast<uint32_t>(priority));
  signature->set_compressor(static_cast<uint32_t>(compression.compressor));
  signature->set_compression_parameter(compression.parameter);
  signature->set_compression_feedback(compression.feedback);
  for (const PartSignature& part : spec.signature.parts) {
    wire::Part* out_part = signature->add_parts();
    out_part->set_dtype(static_cast<uint32_t>(part.dtype));
    for (const int64_t dim : part.shape.dims()) out_part->add_dims(dim);
  }
  for (const std::string& name : spec.signature.part_names) signature->add_part_names(name);
  for (const Rank rank : spec.signature.ranks) signature->add_ranks(rank);
}

// Whether the fields go with the kind of operation; everybody behind the codec relies on it.
absl::Status CheckSignature(const Signature& signature) {
  const KindTraits& traits = TraitsOf(signature.kind);
  if ((signature.reduce_op != ReduceOp::kNone) != traits.reduces) return Bad("reduce operation");
  if ((signature.root >= 0) != traits.rooted) return Bad("root");
  if ((signature.peer >= 0) != (signature.kind == OpKind::kSendRecv)) return Bad("receiver");
  if (signature.peer >= 0 && signature.peer == signature.root) return Bad("receiver");
  if (signature.ranks.empty() == traits.has_ranks) return Bad("list of ranks");
  const bool moves = traits.tensors() || signature.kind == OpKind::kBarrier;
  if (signature.device != DeviceType::kCpu && !moves) return Bad("device");
  const Priority allowed =
      signature.device == DeviceType::kCpu ? Priority::kLow : Priority::kUrgent;
  if (signature.priority != Priority::kNormal && !(moves && signature.priority == allowed)) {
    return Bad("priority");
  }
  const size_t parts = signature.parts.size();
  if ((parts > 0) != traits.tensors()) return Bad("number of tensors");
  if (parts > 1 && !traits.groups) return Bad("a group of this kind");
  if (signature.part_names.size() != (parts > 1 ? parts : 0)) return Bad("names of a group");
  int64_t bytes = 0;
  for (const PartSignature& part : signature.parts) {
    RUEDA_RETURN_IF_ERROR(
        CheckCompressible(signature.compression, signature.kind, signature.reduce_op, part.dtype));
    const int64_t more = part.shape.elements() * static_cast<int64_t>(DTypeSize(part.dtype));
    if (__builtin_add_overflow(bytes, more, &bytes)) return Bad("size of a group");
  }
  return absl::OkStatus();
}

absl::StatusOr<SpecPtr> DecodeSpec(const wire::Spec& in) {
  const wire::Signature& from = in.signature();
  RUEDA_RETURN_IF_ERROR(CheckSet(in.set()));
  if (in.name().size() > kNameBytesMax) return Bad("name too long");
  if (from.kind() >= kOpKindCount) return Bad("kind of operation");
  if (from.reduce_op() >= kReduceOpCount) return Bad("reduce operation");
  if (from.root() < -1 || from.root() >= kRanksMax) return Bad("root");
  if (from.peer() < -1 || from.peer() >= kRanksMax) return Bad("receiver");
  if (from.device() >= kDeviceTypeCount) return Bad("device");
  if (from.priority() >= kPriorityCount) return Bad("priority");
  if (from.compressor() >= kCompressorCount) return Bad("compressor");
  if (from.parts_size() > kGroupTensorsMax) return Bad("too many tensors in a group");
  if (from.part_names_size() > kGroupTensorsMax) return Bad("names of a group");
  Signature signature;
  signature.kind = static_cast<OpKind>(from.kind());
  signature.reduce_op = static_cast<ReduceOp>(from.reduce_op());
  signature.root = from.root();
  signature.peer = from.peer();
  signature.device = static_cast<DeviceType>(from.device());
  signature.priority = static_cast<Priority>(from.priority());
  signature.compression = {static_cast<Compressor>(from.compressor()), from.compression_parameter(),
                           from.compression_feedback()};
  if (!IsValid(signature.compression)) return Bad("compressor");
  for (const wire::Part& part : from.parts()) {
    if (!IsDType(static_cast<int>(part.dtype()))) return Bad("dtype");
    const absl::Span<const int64_t> dims(part.dims().data(), part.dims_size());
    RUEDA_RETURN_IF_ERROR(Shape::Validate(dims));
    signature.parts.push_back({static_cast<DType>(part.dtype()), Shape(dims)});
  }
  for (const std::string& name : from.part_names()) {
    if (name.size() > kNameBytesMax) return Bad("name too long");
    signature.part_names.push_back(name);
  }
  RUEDA_RETURN_IF_ERROR(DecodeRanks(from.ranks(), &signature.ranks));
  RUEDA_RETURN_IF_ERROR(CheckSignature(signature));
  return MakeSpec(in.set(), in.name(), std::move(signature));
}

absl::Status CheckDims(const google::protobuf::RepeatedField<int64_t>& dims) {
  for (const int64_t dim : dims) {
    if (dim < 0) return Bad("negative first dimension");
  }
  return absl::OkStatus();
}

// Announcements and orders have the same fields for it.
template <typename Message>
void EncodeScaling(const Scaling& scaling, Message* out) {
  out->set_prescale(scaling.prescale);
  out->set_postscale(scaling.postscale);
}

template <typename Message>
absl::Status DecodeScaling(const Message& in, Scaling* scaling) {
  *scaling = {in.prescale(), in.postscale()};
  return scaling->finite() ? absl::OkStatus() : Bad("scale factor");
}

absl::Status DecodeWhoTakesPart(const wire::Order& in, Order* order) {
  if (in.has_pair()) {
    RUEDA_RETURN_IF_ERROR(CheckRank(in.pair().from()));
    RUEDA_RETURN_IF_ERROR(CheckRank(in.pair().to()));
    order->from = in.pair().from();
    order->to = in.pair().to();
  }
  if (!in.has_absent()) return absl::OkStatus();
  RUEDA_RETURN_IF_ERROR(DecodeRanks(in.absent().ranks(), &order->absent));
  return DecodeScaling(in.absent(), &order->scaling);
}

absl::Status DecodeMark(const wire::Mark& in, TensorId* id, uint16_t* sequence) {
  if (in.sequence() > UINT16_MAX) return Bad("sequence number");
  *id = in.id();
  *sequence = static_cast<uint16_t>(in.sequence());
  return absl::OkStatus();
}

// Serializes `values` as repeated fields of one or more messages of at most `bytes_max` bytes,
// except that a single value may be larger.
template <typename Message, typename Value, typename Encode, typename Field>
std::vector<std::string> Pack(absl::Span<const Value> values, Encode encode, Field field,
                              size_t bytes_max) {
  std::vector<std::string> packed;
  if (values.empty()) return packed;
  Message message;
  size_t bytes = 0;
  for (const Value& value : values) {
    auto* entry = field(message)->Add();
    encode(value, entry);
    const size_t size = entry->ByteSizeLong() + 8;  // with its tag and length
    if (bytes + size > bytes_max && field(message)->size() > 1) {
      auto last = std::move(*entry);
      field(message)->RemoveLast();
      packed.push_back(message.SerializeAsString());
      message.Clear();
      *field(message)->Add() = std::move(last);
      bytes = 0;
    }
    bytes += size;
  }
  packed.push_back(message.SerializeAsString());
  return packed;
}

}  // namespace

absl::Status ParseMessage(absl::string_view bytes, google::protobuf::MessageLite* message) {
  if (bytes.size() > kControlFrameBytesMax) return Bad("too long");
  // From one array: the library then believes a string's length only as far as there are bytes in
  // the message around it. (From a stream it would reserve memory for any.)
  if (!LengthsFit(message->GetTypeName(), bytes) ||
      !message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Bad("not a protocol buffer of the expected type");
  }
  return absl::OkStatus();
}

void EncodeAnnouncement(const Announcement& announcement, wire::Announcement* out) {
  if (announcement.id == kNoTensor) {
    EncodeSpec(*announcement.spec, out->mutable_spec());
  } else {
    out->set_id(announcement.id);
  }
  out->set_waited(announcement.waited);
  out->set_partly(announcement.partly);
  out->set_done(announcement.done);
  if (!announcement.extras.scaling.none()) {
    out->set_scaled(true);
    EncodeScaling(announcement.extras.scaling, out);
  }
  for (const int64_t dim : announcement.extras.first_dims) out->add_first_dims(dim);
  if (const std::string* const fault = announcement.extras.fault()) out->set_fault(*fault);
  if (const std::string* const data = announcement.extras.data()) out->set_data(*data);
}

absl::StatusOr<Announcement> DecodeAnnouncement(const wire::Announcement& in) {
  Announcement announcement;
  announcement.id = in.id();
  if (in.id() == kNoTensor) {
    RUEDA_ASSIGN_OR_RETURN(announcement.spec, DecodeSpec(in.spec()));
  }
  if (in.done() > UINT16_MAX) return Bad("count of completed batches");
  announcement.waited = in.waited();
  announcement.partly = in.partly();
  announcement.done = static_cast<uint16_t>(in.done());
  if (in.scaled()) RUEDA_RETURN_IF_ERROR(DecodeScaling(in, &announcement.extras.scaling));
  if (in.first_dims_size() > kGroupTensorsMax) return Bad("too many first dimensions");
  RUEDA_RETURN_IF_ERROR(CheckDims(in.first_dims()));
  announcement.extras.first_dims.assign(in.first_dims().begin(), in.first_dims().end());
  if (in.fault().size() > kFaultBytesMax) return Bad("fault");
  if (in.data().size() > kInlineBytesMax) return Bad("data");
  if (in.has_fault()) announcement.extras.SayFault(in.fault());
  if (in.has_data()) announcement.extras.SayData(in.data());
  return announcement;
}

void EncodeEvent(const ControlEvent& event, wire::Event* out) {
  out->set_rank(event.rank);
  out->set_speaks_for(static_cast<uint32_t>(event.speaks_for));
  if (const auto* announced = std::get_if<Announced>(&event.what)) {
    EncodeAnnouncement(announced->announcement, out->mutable_announced());
  } else if (const auto* waited = std::get_if<Waited>(&event.what)) {
    out->mutable_waited()->set_id(waited->id);
    out->mutable_waited()->set_sequence(waited->sequence);
  } else if (const auto* done = std::get_if<Done>(&event.what)) {
    out->mutable_done()->set_lane(done->lane);
    out->mutable_done()->set_count(done->count);
  } else if (const auto* expire = std::get_if<Expire>(&event.what)) {
    out->mutable_expire()->set_id(expire->id);
    out->mutable_expire()->set_sequence(expire->sequence);
  } else if (const auto* blocked = std::get_if<Blocked>(&event.what)) {
    out->mutable_blocked()->set_level(blocked->level);
    out->mutable_blocked()->set_question(blocked->question);
  } else if (std::holds_alternative<Asked>(event.what)) {
    out->mutable_asked();
  } else if (const auto* wished = std::get_if<Wished>(&event.what)) {
    out->set_wished(wished->bits);
  } else {
    out->mutable_leave();
  }
}

absl::StatusOr<ControlEvent> DecodeEvent(const wire::Event& in) {
  if (in.rank() < 0 || in.rank() >= kRanksMax) return Bad("rank");
  if (in.speaks_for() > static_cast<uint32_t>(SpeaksFor::kSubtree)) return Bad("speaks_for");
  const bool for_others = in.speaks_for() != static_cast<uint32_t>(SpeaksFor::kRank);
  if (for_others && in.what_case() != wire::Event::kAnnounced &&
      in.what_case() != wire::Event::kWaited) {
    return Bad("something said for others that each says for itself");
  }
  ControlEvent event;
  event.rank = in.rank();
  event.speaks_for = static_cast<SpeaksFor>(in.speaks_for());
  switch (in.what_case()) {
    case wire::Event::kAnnounced: {
      Announced announced;
      RUEDA_ASSIGN_OR_RETURN(announced.announcement, DecodeAnnouncement(in.announced()));
      const Announcement& announcement = announced.announcement;
      if (for_others && !announcement.extras.empty()) return Bad("extras said for others");
      if (announcement.partly && !(for_others && announcement.waited)) return Bad("partly waited");
      event.what = std::move(announced);
      return event;
    }
    case wire::Event::kWaited: {
      Waited waited;
      RUEDA_RETURN_IF_ERROR(DecodeMark(in.waited(), &waited.id, &waited.sequence));
      event.what = waited;
      return event;
    }
    case wire::Event::kDone:
      RUEDA_RETURN_IF_ERROR(CheckSet(in.done().lane()));
      if (in.done().count() > UINT16_MAX) return Bad("count of completed batches");
      event.what = Done{in.done().lane(), static_cast<uint16_t>(in.done().count())};
      return event;
    case wire::Event::kLeave:
      event.what = Leave{};
      return event;
    case wire::Event::kExpire: {
      Expire expire;
      RUEDA_RETURN_IF_ERROR(DecodeMark(in.expire(), &expire.id, &expire.sequence));
      event.what = expire;
      return event;
    }
    case wire::Event::kBlocked: {
      const uint32_t level = in.blocked().level();
      if (level > Blocked::kStill) return Bad("level of being blocked");
      if (in.blocked().question() > UINT16_MAX) return Bad("question");
      event.what = Blocked{static_cast<Blocked::Level>(level),
                           static_cast<uint16_t>(in.blocked().question())};
      return event;
    }
    case wire::Event::kAsked:
      event.what = Asked{};
      return event;
    case wire::Event::kWished:
      if (in.wished() > UINT8_MAX) return Bad("wish");
      event.what = Wished{static_cast<uint8_t>(in.wished())};
      return event;
    case wire::Event::WHAT_NOT_SET:
      break;
  }
  return Bad("an event of an unknown kind");
}

void EncodePlanItem(const PlanItem& item, wire::PlanItem* out) {
  if (const auto* define = std::get_if<Define>(&item)) {
    out->mutable_define()->set_id(define->id);
    EncodeSpec(*define->spec, out->mutable_define()->mutable_spec());
  } else if (const auto* forget = std::get_if<Forget>(&item)) {
    out->set_forget(forget->id);
  } else if (const auto* order = std::get_if<Order>(&item)) {
    wire::Order* out_order = out->mutable_order();
    out_order->set_lane(order->lane);
    for (const Ordered& ordered : order->batch) {
      wire::Ordered* out_ordered = out_order->add_batch();
      out_ordered->set_id(ordered.id);
      out_ordered->set_sequence(ordered.sequence);
      for (const int64_t dim : ordered.first_dims) out_ordered->add_first_dims(dim);
    }
    if (order->data != nullptr) {
      for (const std::string& data : *order->data) out_order->add_data(data);
    }
    if (order->to >= 0) {
      out_order->mutable_pair()->set_from(order->from);
      out_order->mutable_pair()->set_to(order->to);
    }
    if (!order->absent.empty()) {
      wire::Absent* absent = out_order->mutable_absent();
      for (const Rank rank : order->absent) absent->add_ranks(rank);
      EncodeScaling(order->scaling, absent);
    }
  } else if (const auto* reject = std::get_if<Reject>(&item)) {
    wire::Reject* out_reject = out->mutable_reject();
    EncodeSpec(*reject->spec, out_reject->mutable_spec());
    out_reject->set_sequence(reject->sequence);
    for (const Rank rank : reject->ranks) out_reject->add_ranks(rank);
    out_reject->set_code(static_cast<uint32_t>(reject->status.code()));
    out_reject->set_message(std::string(reject->status.message()));
  } else if (const auto* added = std::get_if<SetAdded>(&item)) {
    wire::SetAdded* out_added = out->mutable_set_added();
    out_added->set_set(added->set);
    for (const Rank rank : added->ranks) out_added->add_ranks(rank);
    out_added->set_sequence(added->sequence);
  } else if (const auto* removed = std::get_if<SetRemoved>(&item)) {
    out->mutable_set_removed()->set_set(removed->set);
    out->mutable_set_removed()->set_sequence(removed->sequence);
  } else if (const auto* joined = std::get_if<Joined>(&item)) {
    out->mutable_joined()->set_set(joined->set);
    out->mutable_joined()->set_last(joined->last);
    out->mutable_joined()->set_sequence(joined->sequence);
  } else if (const auto* question = std::get_if<StillBlocked>(&item)) {
    out->set_still_blocked(question->question);
  } else if (const auto* told = std::get_if<Told>(&item)) {
    wire::Told* out_told = out->mutable_told();
    out_told->set_rank(told->rank);
    EncodeSpec(*told->spec, out_told->mutable_spec());
    out_told->set_sequence(told->sequence);
    out_told->set_text(told->text);
  } else if (const auto* agreed = std::get_if<Agreed>(&item)) {
    out->set_agreed(agreed->bits);
  } else {
    out->set_left(std::get<Left>(item).rank);
  }
}

absl::StatusOr<PlanItem> DecodePlanItem(const wire::PlanItem& in) {
  switch (in.what_case()) {
    case wire::PlanItem::kDefine: {
      Define define;
      define.id = in.define().id();
      RUEDA_ASSIGN_OR_RETURN(define.spec, DecodeSpec(in.define().spec()));
      return define;
    }
    case wire::PlanItem::kForget:
      return Forget{in.forget()};
    case wire::PlanItem::kOrder: {
      Order order;
      RUEDA_RETURN_IF_ERROR(CheckSet(in.order().lane()));
      order.lane = in.order().lane();
      order.batch.reserve(static_cast<size_t>(in.order().batch_size()));
      for (const wire::Ordered& from : in.order().batch()) {
        RUEDA_RETURN_IF_ERROR(CheckDims(from.first_dims()));
        order.batch.push_back(
            {from.id(), from.sequence(), {from.first_dims().begin(), from.first_dims().end()}});
      }
      if (in.order().data_size() > 0) {
        order.data = std::make_shared<const std::vector<std::string>>(in.order().data().begin(),
                                                                      in.order().data().end());
      }
      RUEDA_RETURN_IF_ERROR(DecodeWhoTakesPart(in.order(), &order));
      return order;
    }
    case wire::PlanItem::kReject: {
      Reject reject;
      RUEDA_ASSIGN_OR_RETURN(reject.spec, DecodeSpec(in.reject().spec()));
      reject.sequence = in.reject().sequence();
      RUEDA_RETURN_IF_ERROR(DecodeRanks(in.reject().ranks(), &reject.ranks));
      if (in.reject().code() == 0 || in.reject().code() > 16) return Bad("status code");
      reject.status =
          absl::Status(static_cast<absl::StatusCode>(in.reject().code()), in.reject().message());
      return reject;
    }
    case wire::PlanItem::kSetAdded: {
      SetAdded added;
      RUEDA_RETURN_IF_ERROR(CheckSet(in.set_added().set()));
      added.set = in.set_added().set();
      RUEDA_RETURN_IF_ERROR(DecodeRanks(in.set_added().ranks(), &added.ranks));
      added.sequence = in.set_added().sequence();
      return added;
    }
    case wire::PlanItem::kSetRemoved:
      RUEDA_RETURN_IF_ERROR(CheckSet(in.set_removed().set()));
      return SetRemoved{in.set_removed().set(), in.set_removed().sequence()};
    case wire::PlanItem::kJoined:
      RUEDA_RETURN_IF_ERROR(CheckSet(in.joined().set()));
      RUEDA_RETURN_IF_ERROR(CheckRank(in.joined().last()));
      return Joined{in.joined().set(), in.joined().last(), in.joined().sequence()};
    case wire::PlanItem::kLeft:
      RUEDA_RETURN_IF_ERROR(CheckRank(in.left()));
      return Left{in.left()};
    case wire::PlanItem::kStillBlocked:
      if (in.still_blocked() > UINT16_MAX) return Bad("question");
      return StillBlocked{static_cast<uint16_t>(in.still_blocked())};
    case wire::PlanItem::kTold: {
      Told told;
      RUEDA_RETURN_IF_ERROR(CheckRank(in.told().rank()));
      told.rank = in.told().rank();
      RUEDA_ASSIGN_OR_RETURN(told.spec, DecodeSpec(in.told().spec()));
      told.sequence = in.told().sequence();
      told.text = in.told().text();
      return told;
    }
    case wire::PlanItem::kAgreed:
      if (in.agreed() > UINT8_MAX) return Bad("agreement");
      return Agreed{static_cast<uint8_t>(in.agreed())};
    case wire::PlanItem::WHAT_NOT_SET:
      break;
  }
  return Bad("a plan item of an unknown kind");
}

std::vector<std::string> PackEvents(absl::Span<const ControlEvent> events, size_t bytes_max) {
  return Pack<wire::Events>(
      events, EncodeEvent, [](wire::Events& m) { return m.mutable_events(); }, bytes_max);
}

absl::Status UnpackEvents(absl::string_view bytes, std::vector<ControlEvent>* events) {
  wire::Events message;
  RUEDA_RETURN_IF_ERROR(ParseMessage(bytes, &message));
  for (const wire::Event& in : message.events()) {
    RUEDA_ASSIGN_OR_RETURN(ControlEvent event, DecodeEvent(in));
    events->push_back(std::move(event));
  }
  return absl::OkStatus();
}

std::vector<std::string> PackPlan(const Plan& plan, size_t bytes_max) {
  return Pack<wire::Plan>(
      absl::MakeConstSpan(plan), EncodePlanItem, [](wire::Plan& m) { return m.mutable_items(); },
      bytes_max);
}

absl::Status UnpackPlan(absl::string_view bytes, Plan* plan) {
  google::protobuf::Arena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<wire::Plan>(&arena);
  RUEDA_RETURN_IF_ERROR(ParseMessage(bytes, &message));
  for (const wire::PlanItem& in : message.items()) {
    RUEDA_ASSIGN_OR_RETURN(PlanItem item, DecodePlanItem(in));
    plan->push_back(std::move(item));
  }
  return absl::OkStatus();
}

}  // namespace rueda
