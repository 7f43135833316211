// Hostile bytes. The first byte chooses the reader, the rest is what it reads. Nothing may crash,
// hang, or take memory that the input does not pay for.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "controller/bus/link.h"
#include "controller/bus/log_codec.h"
#include "controller/bus/store_relay.h"
#include "controller/failure/failure.h"
#include "controller/launcher/agent/agent_words.h"
#include "controller/launcher/decide/batch_system.h"
#include "controller/launcher/decide/host_list.h"
#include "controller/launcher/host/kept_memory.h"
#include "controller/membership/authority.h"
#include "controller/negotiation/aggregator.h"
#include "controller/negotiation/coordinator.h"
#include "controller/negotiation/member.h"
#include "controller/protocol/authentication.h"
#include "controller/protocol/codec.h"
#include "controller/protocol/frame.h"
#include "controller/rendezvous/authority_link.h"
#include "controller/rendezvous/clocks.h"
#include "controller/rendezvous/detect/detect.h"
#include "controller/rendezvous/meeting.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "core/base/shared_memory.h"
#include "core/config/config.h"
#include "test/fuzz/fuzz_job.h"

namespace rueda {
namespace {

const SessionScope kScope = {"secret", "job", 1};
const Nonce kNonce = {1, 2, 3};

// Before anything is proved: nobody gets in.
void Shake(Handshake handshake, absl::string_view input) {
  handshake.Begin();
  while (!handshake.done() && input.size() >= handshake.expected_bytes()) {
    const absl::string_view message = input.substr(0, handshake.expected_bytes());
    input.remove_prefix(message.size());
    if (!handshake.Receive(message).ok()) return;
  }
  RUEDA_CHECK(!handshake.done()) << "somebody guessed a MAC";
}

// A client that knows the secret, and says it is anybody of anywhere.
void ShakeKnowingly(absl::string_view input) {
  SessionScope scope = kScope;
  Rank rank = 0, meant = 0;
  Nonce nonce = {};
  std::string bytes(input.substr(0, 16 + nonce.size()));
  bytes.resize(16 + nonce.size());
  memcpy(&scope.membership, &bytes[0], 8);
  memcpy(&rank, &bytes[8], 4);
  memcpy(&meant, &bytes[12], 4);
  memcpy(nonce.data(), &bytes[16], nonce.size());
  Handshake client = Handshake::Client(scope, rank, meant, nonce);
  Handshake server = Handshake::Server(kScope, 0, kNonce);
  const auto reply = server.Receive(client.Begin());
  if (!reply.ok()) return;
  RUEDA_CHECK(scope.membership == kScope.membership && meant == 0 && rank >= 0 && rank < kRanksMax);
  const auto finish = client.Receive(*reply);
  RUEDA_CHECK(finish.ok() && server.Receive(*finish).ok() && server.peer() == rank);
}

// What follows from events and plans, on the root, on leaders and on rank 1.
class Job {
 public:
  Job()
      : coordinator_(FuzzJob()),
        leader_(*FuzzJob().leaders, 0, SpeaksFor::kHost, kSecond, FuzzJob().process_sets),
        subtree_(*FuzzJob().leaders, 2, SpeaksFor::kSubtree, kSecond, FuzzJob().process_sets),
        member_(1, kFuzzWorld, FuzzJob().process_sets) {
    Signature signature;
    signature.kind = OpKind::kAllreduce;
    signature.reduce_op = ReduceOp::kSum;
    signature.parts.push_back({DType::kFloat32, {4}});
    member_.Submit(0, MakeSpec(kWorldSet, "w", signature), {}, true);
    member_.Submit(1, MakeSpec(kWorldSet, "", Signature()), {}, false);
    signature = Signature();
    signature.kind = OpKind::kJoin;
    member_.Submit(2, MakeSpec(1, "", signature), {}, true);
    Announce();
  }

  // What the root decides can be packed, and is read as it was.
  bool Step(const ControlEvent& event) {
    Plan plan;
    std::vector<ControlEvent> passed_on;
    (void)leader_.Step(event, now_, &passed_on);
    (void)subtree_.Step(event, now_, &passed_on);
    const bool ok = coordinator_.Step(event, ++now_, &plan).ok();
    Plan unpacked;
    for (const std::string& packed : PackPlan(plan, 1 << 20)) {
      const absl::Status status = UnpackPlan(packed, &unpacked);
      RUEDA_CHECK(status.ok()) << status.message();
    }
    RUEDA_CHECK(unpacked.size() == plan.size());
    return Apply(unpacked) && ok;
  }

  bool Apply(const Plan& plan) {
    bool ok = true;
    for (const PlanItem& item : plan) {
      (void)leader_.Apply(item);
      (void)subtree_.Apply(item);
      if (ok) ok = member_.Apply(item, &actions_).ok();
      Announce();
    }
    for (const Action& action : actions_) {
      if (const auto* left = std::get_if<Left>(&action)) RUEDA_CHECK(left->rank < kFuzzWorld);
    }
    return ok;
  }

  // So much later.
  void CheckDeadlines(Nanos later) {
    now_ += later;
    std::vector<ControlEvent> passed_on;
    leader_.CheckDeadlines(now_, &passed_on);
    subtree_.CheckDeadlines(now_, &passed_on);
    std::vector<std::string> reports;
    std::vector<Expire> expired;
    coordinator_.CheckDeadlines(now_, &reports, &expired);
    for (const Expire& expire : expired) Step({0, expire});
  }

 private:
  void Announce() {
    while (member_.Next() != nullptr) member_.Pop();
  }

  Coordinator coordinator_;
  Aggregator leader_;
  Aggregator subtree_;
  Member member_;
  std::vector<Action> actions_;
  Nanos now_ = 0;
};

// An authenticated leader that speaks nonsense to the root.
void TakeEvents(absl::string_view input) {
  std::vector<ControlEvent> events;
  if (!UnpackEvents(input, &events).ok()) return;
  Job job;
  for (const ControlEvent& event : events) {
    if (!job.Step(event)) return;  // the membership ends
  }
  job.CheckDeadlines(FuzzJob().stall_warn);
  job.CheckDeadlines(FuzzJob().stall_timeout);
}

// An authenticated root that speaks nonsense to everybody.
void TakePlan(absl::string_view input) {
  Plan plan;
  if (UnpackPlan(input, &plan).ok()) Job().Apply(plan);
}

void TakeRoster(absl::string_view input) {
  wire::Roster roster;
  if (!ParseMessage(input, &roster).ok()) return;
  const auto hellos = HellosOf(roster, kFuzzWorld);
  RUEDA_CHECK(ErrorOf(roster).ok() || !hellos.ok());
  RUEDA_CHECK(!hellos.ok() || hellos->size() == kFuzzWorld);
}

// The two times of a peer's clock, and what a leader makes of such.
void TakeClock(absl::string_view input) {
  ClockSample sample;
  if (UnpackReading(input, &sample).ok()) {
    sample.answered = kSecond;
    EstimateOffset({sample});
  }
  (void)UnpackOffset(input);
}

void TakeStore(FrameType type, absl::string_view input) {
  LinkStore store([] {});
  StoreRelay relay(nullptr, &store);
  (void)relay.OnFrame(nullptr, {type, 0, std::string(input)});
  (void)relay.OnFrame(nullptr, {FrameType::kStoreSet, 0, std::string(input)});
}

void TakeFrame(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kRoster:
      return TakeRoster(frame.payload);
    case FrameType::kEvents:
      return TakeEvents(frame.payload);
    case FrameType::kPlan:
      return TakePlan(frame.payload);
    case FrameType::kFailure:
      (void)DecodeFailure(frame.payload).ToString();
      return;
    case FrameType::kStoreSet:
    case FrameType::kStoreGet:
    case FrameType::kStoreValue:
      return TakeStore(frame.type, frame.payload);
    case FrameType::kClock:
      return TakeClock(frame.payload);
    default:
      return;
  }
}

// One frame, without its MAC: first of somebody who does not know the key, then of somebody who
// does.
void ReadFrame(absl::string_view input) {
  const SessionKey key = {9};
  const absl::string_view key_text(reinterpret_cast<const char*>(key.data()), key.size());
  const Mac right = ComputeMac(key_text, input);
  Mac wrong = right;
  wrong[0] ^= 1;
  for (const Mac& mac : {wrong, right}) {
    FrameReader reader({1, 0, 1}, key);
    std::string buffer(input);
    buffer.append(reinterpret_cast<const char*>(mac.data()), mac.size());
    Frame frame;
    const absl::StatusOr<bool> read = reader.Read(&buffer, &frame);
    if (!read.ok() || !*read) continue;
    RUEDA_CHECK(mac == right) << "somebody guessed a MAC";
    TakeFrame(frame);
  }
}

// Everything that can be read at the socket `end` now.
std::string ReadAll(const UniqueFd& end) {
  char bytes[kHandshakeBytesMax];
  const ssize_t n = recv(end.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  return std::string(bytes, n > 0 ? static_cast<size_t>(n) : 0);
}

// A peer that is let in by rank 0's link, and then says `bytes` in pieces of `piece`.
void TakeLink(const std::function<std::string(const SessionKeys&)>& bytes, size_t piece) {
  int ends[2];
  RUEDA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const UniqueFd end(ends[0]);
  const auto link = Link::Server(UniqueFd(ends[1]), kScope, 0);
  const auto say = [&](absl::string_view part) {
    return send(end.get(), part.data(), part.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(part.size()) &&
           link->OnReadable().ok();
  };
  Handshake client = Handshake::Client(kScope, 1, 0, kNonce);
  RUEDA_CHECK(say(client.Begin()) && say(*client.Receive(ReadAll(end))) && link->established());
  const std::string said = bytes(client.keys());
  for (size_t i = 0; i < said.size(); i += piece) {
    const bool ok = say(absl::string_view(said).substr(i, piece));
    Link::Received received;
    while (link->Next(&received)) {
      RUEDA_CHECK(received.descriptors.size() == received.frame.descriptors);
      TakeFrame(received.frame);
    }
    if (!ok) return;
  }
}

// How long the pieces are, then frames that are signed: type, descriptors, and the length of what
// follows, in a byte each.
void TakeSigned(absl::string_view input) {
  if (input.empty()) return;
  const auto sign = [&](const SessionKeys& keys) {
    FrameWriter writer({kScope.membership, 1, 0}, keys.send);
    std::string frames;
    absl::string_view rest = input.substr(1);
    while (rest.size() >= 3) {
      const absl::string_view payload = rest.substr(3, static_cast<uint8_t>(rest[2]));
      frames +=
          writer.Write(static_cast<FrameType>(rest[0]), payload, static_cast<uint8_t>(rest[1]));
      rest.remove_prefix(3 + payload.size());
    }
    return frames;
  };
  TakeLink(sign, 1 + static_cast<uint8_t>(input[0]));
}

// The same without a signature.
void TakeUnsigned(absl::string_view input) {
  TakeLink([&](const SessionKeys&) { return std::string(input); }, 7);
}

// A neighbour that scribbles over the announcement log.
void ReadLog(absl::string_view input) {
  FuzzLog memory(input);
  HostLog log = memory.Open(0);
  const std::vector<Rank> ranks = {0, 1};
  Job job;
  LogEntry entry;
  for (int i = 0; i < 64; ++i) {
    const absl::StatusOr<bool> read = log.Read(&entry);
    if (!read.ok() || !*read) break;
    log.TakeStarving();
    if (IsPlan(entry)) {
      Plan plan;
      if (!UnpackPlan(entry.payload, &plan).ok() || !job.Apply(plan)) break;
    } else {
      const absl::StatusOr<ControlEvent> event = DecodeLogEvent(entry, ranks);
      if (!event.ok() || !job.Step(*event)) break;
    }
  }
  (void)AppendEvent({0, Leave{}}, &log);
}

// What stands at the other end of a remote shell, and who speaks to an agent.
void TakeAgentsWord(absl::string_view input) {
  const HostShare share = {8, 2, 3, 1, 2};
  launch::FromAgent said;
  if (ReadFromAgent(input, share, &said).ok() && said.has_event()) {
    const Message message = FromWire(said.event());
    if (message.kind == MessageKind::kRankEnded || message.kind == MessageKind::kFromRank) {
      RUEDA_CHECK(message.rank >= 2 && message.rank <= 4);
      RUEDA_CHECK(message.kind != MessageKind::kFromRank ||
                  message.payload.size() <= kElasticBytesMax);
    }
  }
  launch::ToAgent told;
  (void)ReadToAgent(input, nullptr, &told);
  if (!ReadToAgent(input, &share, &told).ok() || !told.has_event()) return;
  const Message message = FromWire(told.event());
  switch (message.kind) {
    case MessageKind::kStart:
    case MessageKind::kKill:
    case MessageKind::kToRank:
      RUEDA_CHECK(message.rank >= 2 && message.rank <= 4);
      break;
    case MessageKind::kClear:
    case MessageKind::kVerdict:
      RUEDA_CHECK(message.rank >= 0 && message.rank < share.size);
      break;
    default:
      break;
  }
}

// A process of an elastic job that asks for the next membership whatever it likes, among others who
// ask in order.
void TakeAsk(const wire::Ask& ask) {
  Authority::Options options;
  options.min = 2;
  options.max = kFuzzWorld;
  Authority authority(options);
  Authority::Actions actions;
  Nanos now = 0;
  for (Slot slot = 0; slot < kFuzzWorld; ++slot) authority.OnStarted(slot, 0, now);
  for (int round = 0; round < 3 && !authority.over(); ++round) {
    const uint64_t number = authority.record().number;
    const Authority::Ask hostile = {ask.membership(), ask.commits(), ask.blames()};
    authority.OnAsk(0, hostile, now, &actions);
    for (Slot slot = 1; slot < kFuzzWorld; ++slot) {
      authority.OnAsk(slot, {number, 1, kNoSlot}, now, &actions);
    }
    authority.OnAsk(0, hostile, now, &actions);
    if (authority.deadline() != kForever) authority.OnTime(now = authority.deadline(), &actions);
  }
  const MembershipRecord& record = authority.record();
  RUEDA_CHECK(record.slots.size() <= kFuzzWorld);
  RUEDA_CHECK(record.survivors <= static_cast<int>(record.slots.size()));
  for (const Slot slot : record.slots) RUEDA_CHECK(slot >= 0 && slot < kFuzzWorld);
  for (const Authority::Action& action : actions) RUEDA_CHECK(action.slot < kFuzzWorld);
}

// One that keeps whatever it likes.
void TakeKept(const wire::KeptPart& part) {
  static const auto* memory = new auto(*SharedMemory::Create("fuzz", 4'096));
  KeptMemory kept;
  for (int i = 0; i < 5; ++i) {
    kept.Keep(0, part, UniqueFd(dup((*memory)->fd())));
    kept.OnEnded(0);
    const auto found = kept.Find(part);
    RUEDA_CHECK(!found.has_value() || found->memory >= 0);
  }
}

// What a process of an elastic job and the launcher say to each other.
void TakeMembership(absl::string_view input) {
  wire::ToProcess told;
  if (ParseMessage(input, &told).ok() && CheckRecord(told.record()).ok()) {
    const wire::Record& record = told.record();
    const int size = record.slots_size();
    RUEDA_CHECK(record.rank() >= 0 && record.rank() < size && record.hosts_size() == size);
    RUEDA_CHECK(record.source() >= 0 && record.source() < size);
  }
  wire::Ask ask;
  if (ParseMessage(input, &ask).ok()) TakeAsk(ask);
  wire::FromProcess word;
  if (ParseMessage(input, &word).ok() && word.has_keep()) TakeKept(word.keep());
}

// Lines "name=value": as an environment, and each as a knob.
void ReadSettings(absl::string_view input) {
  Environment environment;
  Config config;
  for (const absl::string_view line : absl::StrSplit(input, '\n')) {
    const std::pair<std::string, std::string> setting =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    environment.insert(setting);
    (void)SetKnob(setting.first, setting.second, &config);
  }
  (void)AgreedKnobs(config);
  (void)ParseProcessSets(config.process_sets, kFuzzWorld);
  (void)ParseProcessSets(config.process_sets, kRanksMax);
  Config from_environment;
  if (ReadEnvironment(environment, &from_environment).ok()) {
    (void)DetectLaunch(from_environment, environment);
  }
}

// As -H has them, and as a hostfile.
void ReadHosts(absl::string_view input) {
  for (const auto& hosts : {ParseHosts(input), ParseHostfile(input)}) {
    if (!hosts.ok()) continue;
    for (const int ranks : {1, kLocalRanksMax}) (void)FillHosts(*hosts, ranks);
  }
}

// Lines "name=value", as the environment of a batch job, and behind an empty line what its files
// hold.
void ReadAllocation(absl::string_view input) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(input, absl::MaxSplits("\n\n", 1));
  Environment environment;
  for (const absl::string_view line : absl::StrSplit(parts.first, '\n')) {
    const std::pair<std::string, std::string> setting =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    environment.insert(setting);
  }
  const auto read = [&](const std::string&) -> absl::StatusOr<std::string> { return parts.second; };
  const auto found = FindAllocation(environment, read);
  if (!found.ok() || !found->has_value()) return;
  int64_t slots = 0;
  for (const HostSlots& host : (*found)->hosts) {
    RUEDA_CHECK(host.slots >= 1 && host.slots <= kLocalRanksMax);
    RUEDA_CHECK(CheckHostName(host.name, host.name).ok());
    slots += host.slots;
  }
  RUEDA_CHECK(slots >= 1 && slots <= kRanksMax);
}

}  // namespace
}  // namespace rueda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace rueda;  // NOLINT(google-build-using-namespace)
  if (size == 0) return 0;
  const absl::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 's':
      Shake(Handshake::Server(kScope, 0, kNonce), input);
      break;
    case 'u':
      ShakeKnowingly(input);
      break;
    case 'w':
      TakeSigned(input);
      break;
    case 'b':
      TakeUnsigned(input);
      break;
    case 'c':
      Shake(Handshake::Client(kScope, 1, 0, kNonce), input);
      break;
    case 'f':
      ReadFrame(input);
      break;
    case 'e':
      TakeEvents(input);
      break;
    case 'p':
      TakePlan(input);
      break;
    case 'h':
      TakeRoster(input);
      break;
    case 't':
      TakeClock(input);
      break;
    case 'r':
      TakeStore(FrameType::kStoreGet, input);
      TakeStore(FrameType::kStoreValue, input);
      break;
    case 'x':
      (void)DecodeFailure(input).ToString();
      break;
    case 'l':
      ReadLog(input);
      break;
    case 'k':
      ReadSettings(input);
      break;
    case 'g':
      TakeAgentsWord(input);
      break;
    case 'm':
      TakeMembership(input);
      break;
    case 'n':
      ReadHosts(input);
      break;
    case 'a':
      ReadAllocation(input);
      break;
    default:
      break;
  }
  return 0;
}
