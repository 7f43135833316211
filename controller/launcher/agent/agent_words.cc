#include "controller/launcher/agent/agent_words.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "controller/launcher/decide/supervisor.h"
#include "controller/protocol/lengths.h"
#include "core/base/limits.h"
#include "core/base/utf8.h"

namespace rueda {
namespace {

constexpr MessageField kReady[] = {{launch::Ready::kMeetingFieldNumber, {}}};
constexpr MessageField kFromAgent[] = {{launch::FromAgent::kHelloFieldNumber, {}},
                                       {launch::FromAgent::kReadyFieldNumber, kReady},
                                       {launch::FromAgent::kRefusalFieldNumber, {}},
                                       {launch::FromAgent::kEventFieldNumber, {}},
                                       {launch::FromAgent::kOutputFieldNumber, {}}};
constexpr MessageField kOrder[] = {{launch::Order::kEnvironmentFieldNumber, {}},
                                   {launch::Order::kWantedFieldNumber, {}}};
constexpr MessageField kToAgent[] = {{launch::ToAgent::kOrderFieldNumber, kOrder},
                                     {launch::ToAgent::kStartFieldNumber, {}},
                                     {launch::ToAgent::kEventFieldNumber, {}}};

constexpr size_t kVersionBytesMax = 4'096;  // with a line for each library
constexpr size_t kHostIdBytesMax = 256;
constexpr int kExitCodeMax = 255;
constexpr int kSignalMax = 64;

absl::Status Wrong(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("a message with ", what));
}

absl::Status Parse(absl::string_view bytes, absl::Span<const MessageField> fields,
                   google::protobuf::MessageLite* message) {
  const bool good = bytes.size() <= kControlFrameBytesMax && LengthsFit(fields, bytes) &&
                    message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  return good ? absl::OkStatus() : absl::DataLossError("a message that is none");
}

bool Has(const HostShare& share, Rank rank) {
  return rank >= share.first && rank - share.first < share.ranks;
}

bool IsExitCode(int value) {
  return value >= 0 && value <= kExitCodeMax;
}

void Tame(std::string* text) {
  *text = Printable(*text, kErrorTextBytesMax);
}

// An address, or nothing: letters, digits, and what stands between them.
bool IsAddress(absl::string_view text) {
  return text.size() <= kHostNameBytesMax && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  absl::string_view("-._:%[]").find(c) != absl::string_view::npos;
         });
}

absl::Status CheckMeeting(const launch::Meeting& meeting) {
  if (!IsAddress(meeting.address()) || !IsAddress(meeting.master_address())) {
    return Wrong("an address that is none");
  }
  return meeting.master_port() >= 0 && meeting.master_port() <= UINT16_MAX
             ? absl::OkStatus()
             : Wrong("a port that is none");
}

absl::Status CheckEventFromAgent(const HostShare& share, const launch::Event& event) {
  if (event.blames() < -1 || event.blames() >= kRanksMax) return Wrong("a rank that is none");
  switch (static_cast<MessageKind>(event.kind())) {
    case MessageKind::kRankStarted:
    case MessageKind::kStartFailed:
    case MessageKind::kPinFailed:
    case MessageKind::kExecFailed:
    case MessageKind::kRankEnded:
    case MessageKind::kKeeps:
    case MessageKind::kRankDies:
      return Has(share, event.rank()) ? absl::OkStatus() : Wrong("a rank of another host");
    case MessageKind::kSignal:
      return EndsJob(event.value()) ? absl::OkStatus() : Wrong("a signal that ends no job");
    case MessageKind::kFinished:
      return IsExitCode(event.value()) ? absl::OkStatus() : Wrong("an exit status that is none");
    case MessageKind::kHere:
      return absl::OkStatus();
    case MessageKind::kFromRank:
      if (!Has(share, event.rank())) return Wrong("a rank of another host");
      return event.payload().size() <= kElasticBytesMax ? absl::OkStatus()
                                                        : Wrong("too long a payload");
    case MessageKind::kStart:
    case MessageKind::kClear:
    case MessageKind::kKill:
    case MessageKind::kNoMore:
    case MessageKind::kToRank:
    case MessageKind::kEndJob:
    case MessageKind::kVerdict:
    case MessageKind::kLost:
    case MessageKind::kAsk:
      break;
  }
  return Wrong("an event that agents don't tell of");
}

absl::Status CheckFromAgent(const HostShare& share, launch::FromAgent* message) {
  switch (message->kind_case()) {
    case launch::FromAgent::kHello: {
      launch::Hello& hello = *message->mutable_hello();
      *hello.mutable_version() = Printable(hello.version(), kVersionBytesMax);
      return hello.host_id().size() <= kHostIdBytesMax ? absl::OkStatus()
                                                       : Wrong("a host's name that is too long");
    }
    case launch::FromAgent::kReady:
      return CheckMeeting(message->ready().meeting());
    case launch::FromAgent::kRefusal: {
      launch::Refusal& refusal = *message->mutable_refusal();
      Tame(refusal.mutable_why());
      return IsExitCode(refusal.exit_code()) ? absl::OkStatus()
                                             : Wrong("an exit status that is none");
    }
    case launch::FromAgent::kEvent:
      return CheckEventFromAgent(share, message->event());
    case launch::FromAgent::kOutput:
      return Has(share, message->output().rank()) ? absl::OkStatus()
                                                  : Wrong("output of a rank of another host");
    case launch::FromAgent::kLoss:
      Tame(message->mutable_loss());
      return absl::OkStatus();
    case launch::FromAgent::KIND_NOT_SET:
      break;
  }
  return Wrong("nothing in it");
}

absl::Status CheckOrder(const launch::Order& order) {
  const int ranks = order.slots() > 0 ? order.slots() : order.size();  // of the job
  const bool good =
      order.size() >= 1 && order.size() <= kRanksMax && order.ranks() >= 1 &&
      order.ranks() <= kLocalRanksMax && order.first_rank() >= 0 && order.slots() >= 0 &&
      order.slots() <= kElasticProcessesMax && order.slots_here() >= 0 &&
      order.slots_here() <= order.ranks() && order.first_rank() <= ranks - order.ranks() &&
      order.hosts() >= 1 && order.hosts() <= kRanksMax && order.host() >= 0 &&
      order.host() < order.hosts() && order.command_size() > 0 &&
      std::isfinite(order.grace_seconds()) && order.grace_seconds() >= 0 &&
      std::isfinite(order.host_timeout_seconds()) && order.host_timeout_seconds() >= 0;
  return good ? absl::OkStatus() : Wrong("an order that can't be carried out");
}

absl::Status CheckEventToAgent(const HostShare& share, const launch::Event& event) {
  if (event.blames() < -1 || event.blames() >= share.size) return Wrong("a rank that is none");
  switch (static_cast<MessageKind>(event.kind())) {
    case MessageKind::kSignal:
      return event.value() >= 1 && event.value() <= kSignalMax ? absl::OkStatus()
                                                               : Wrong("a signal that is none");
    case MessageKind::kVerdict:
      return event.rank() >= 0 && event.rank() < share.size ? absl::OkStatus()
                                                            : Wrong("a rank that is none");
    case MessageKind::kEndJob:
    case MessageKind::kAsk:
    case MessageKind::kNoMore:
      return absl::OkStatus();
    case MessageKind::kClear:
      return event.rank() >= 0 && event.rank() < share.size ? absl::OkStatus()
                                                            : Wrong("a rank that is none");
    case MessageKind::kToRank:
      if (event.payload().size() > kElasticBytesMax) return Wrong("too long a payload");
      [[fallthrough]];
    case MessageKind::kStart:
    case MessageKind::kKill:
      return Has(share, event.rank()) ? absl::OkStatus() : Wrong("a rank of another host");
    default:
      return Wrong("an event that ruedarun does not tell of");
  }
}

}  // namespace

launch::Event ToWire(const Message& message) {
  launch::Event event;
  event.set_kind(static_cast<int32_t>(message.kind));
  event.set_rank(message.rank);
  event.set_pid(message.pid);
  event.set_value(message.value);
  event.set_flags(message.flags);
  event.set_blames(message.blames);
  event.set_payload(message.payload);
  return event;
}

Message FromWire(const launch::Event& event) {
  return {static_cast<MessageKind>(event.kind()),
          event.rank(),
          event.pid(),
          event.value(),
          event.flags(),
          event.blames(),
          event.payload()};
}

absl::Status ReadFromAgent(absl::string_view bytes, const HostShare& share,
                           launch::FromAgent* message) {
  RUEDA_RETURN_IF_ERROR(Parse(bytes, kFromAgent, message));
  return CheckFromAgent(share, message);
}

absl::Status ReadToAgent(absl::string_view bytes, const HostShare* share,
                         launch::ToAgent* message) {
  RUEDA_RETURN_IF_ERROR(Parse(bytes, kToAgent, message));
  if (message->has_order() != (share == nullptr)) return Wrong("something else than was due");
  if (message->has_order()) return CheckOrder(message->order());
  if (message->has_start()) return CheckMeeting(message->start());
  return message->has_event() ? CheckEventToAgent(*share, message->event())
                              : Wrong("nothing in it");
}

}  // namespace rueda
