// Hostile bytes. The first byte chooses the reader, the rest is what it reads. Nothing may crash,
// hang, or take memory that the input does not pay for.
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "controller/bus/log_codec.h"
#include "controller/negotiation/aggregator.h"
#include "controller/negotiation/coordinator.h"
#include "controller/negotiation/member.h"
#include "controller/protocol/authentication.h"
#include "controller/protocol/codec.h"
#include "controller/protocol/frame.h"
#include "controller/runtime/failure.h"
#include "core/base/check.h"
#include "core/base/limits.h"

namespace rueda {
namespace {

constexpr int kWorld = 4;
const SessionScope kScope = {"secret", "job", 1};
const Nonce kNonce = {1, 2, 3};

CoordinatorOptions Options() {
  CoordinatorOptions options;
  options.world_size = kWorld;
  options.tensor_ids_max = 8;
  return options;
}

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

void ReadFrames(absl::string_view input) {
  FrameReader reader({1, 0, 1}, SessionKey{9});
  std::string buffer(input);
  Frame frame;
  const absl::StatusOr<bool> read = reader.Read(&buffer, &frame);
  RUEDA_CHECK(!read.ok() || !*read) << "somebody guessed a MAC";
}

// An authenticated leader that speaks nonsense to the root.
void TakeEvents(absl::string_view input) {
  std::vector<ControlEvent> events;
  if (!UnpackEvents(input, &events).ok()) return;
  Coordinator coordinator(Options());
  Aggregator aggregator({0, 1, 2, 3}, kWorld, kSecond);
  Member member(1, kWorld);
  Plan plan;
  std::vector<Action> actions;
  std::vector<ControlEvent> passed_on;
  Nanos now = 0;
  for (const ControlEvent& event : events) {
    if (!coordinator.Step(event, now++, &plan).ok()) break;
    (void)aggregator.Step(event, now, &passed_on);
  }
  for (const PlanItem& item : plan) {
    (void)aggregator.Apply(item);
    (void)member.Apply(item, &actions);
  }
  std::vector<std::string> reports;
  std::vector<Expire> expired;
  coordinator.Look(kSecond * 3'600, &reports, &expired);
  aggregator.Look(kSecond * 3'600, &passed_on);
}

// An authenticated root that speaks nonsense to everybody.
void TakePlan(absl::string_view input) {
  Plan plan;
  if (!UnpackPlan(input, &plan).ok()) return;
  Member member(1, kWorld);
  Aggregator aggregator({0, 1}, kWorld, kSecond);
  Signature signature;
  signature.kind = OpKind::kAllreduce;
  signature.reduce_op = ReduceOp::kSum;
  signature.parts.push_back({DType::kFloat32, {4}});
  member.Submit(0, MakeSpec(kWorldSet, "w", signature), {}, true);
  member.Submit(1, MakeSpec(kWorldSet, "", Signature()), {}, false);
  while (member.Next() != nullptr) member.Pop();
  std::vector<Action> actions;
  for (const PlanItem& item : plan) {
    if (!member.Apply(item, &actions).ok()) break;
    (void)aggregator.Apply(item);
    while (member.Next() != nullptr) member.Pop();
  }
  for (const Action& action : actions) {
    if (const auto* left = std::get_if<Left>(&action)) RUEDA_CHECK(left->rank < kWorld);
  }
}

// A neighbour that scribbles over the announcement log.
void ReadLog(absl::string_view input) {
  LogLayout layout;
  layout.writers = 2;
  layout.words = 16;
  layout.side_bytes = 256;
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> memory((layout.bytes() + 63) / 64);
  memcpy(memory.data(), input.data(), std::min(input.size(), layout.bytes()));
  HostLog log(memory.data(), layout, 0);
  const std::vector<Rank> ranks = {0, 1};
  LogEntry entry;
  for (int i = 0; i < 64; ++i) {
    const absl::StatusOr<bool> read = log.Read(&entry);
    if (!read.ok() || !*read) break;
    if (!IsPlan(entry)) (void)DecodeLogEvent(entry, ranks);
    log.TakeStarving();
  }
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
    case 'c':
      Shake(Handshake::Client(kScope, 1, 0, kNonce), input);
      break;
    case 'f':
      ReadFrames(input);
      break;
    case 'e':
      TakeEvents(input);
      break;
    case 'p':
      TakePlan(input);
      break;
    case 'x':
      (void)DecodeFailure(input).ToString();
      break;
    case 'l':
      ReadLog(input);
      break;
    default:
      break;
  }
  return 0;
}
