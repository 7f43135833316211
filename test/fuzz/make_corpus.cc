// Writes the seeds of the fuzz corpus: one valid input for each reader, and some that once broke
// something.
//
//   make_corpus FOLDER
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "controller/bus/log_codec.h"
#include "controller/protocol/authentication.h"
#include "controller/protocol/codec.h"
#include "controller/protocol/frame.h"
#include "controller/runtime/failure.h"

namespace rueda {
namespace {

std::string folder;

void Write(const std::string& name, const std::string& content) {
  std::ofstream(folder + "/" + name, std::ios::binary) << content;
}

Signature SignatureOf(OpKind kind, int parts = 1) {
  Signature signature;
  signature.kind = kind;
  if (kind == OpKind::kAllreduce) signature.reduce_op = ReduceOp::kSum;
  if (kind == OpKind::kBroadcast) signature.root = 1;
  for (int i = 0; i < parts; ++i) signature.parts.push_back({DType::kFloat32, {4}});
  if (parts > 1) {
    for (int i = 0; i < parts; ++i) signature.part_names.push_back(std::string(1, 'a' + i));
  }
  return signature;
}

ControlEvent Announces(Rank rank, SpecPtr spec, std::vector<int64_t> first_dims = {}) {
  Announcement announcement;
  announcement.spec = std::move(spec);
  announcement.waited = true;
  announcement.extras.first_dims = std::move(first_dims);
  return {rank, Announced{std::move(announcement)}};
}

std::string Events(const std::vector<ControlEvent>& events) {
  return "e" + PackEvents(events, 1 << 20)[0];
}
std::string Plans(const Plan& plan) {
  return "p" + PackPlan(plan, 1 << 20)[0];
}

void Events() {
  const SpecPtr w = MakeSpec(0, "w", SignatureOf(OpKind::kAllreduce));
  const SpecPtr group = MakeSpec(0, "a", SignatureOf(OpKind::kAllreduce, 3));
  const SpecPtr gather = MakeSpec(0, "g", SignatureOf(OpKind::kAllgather));
  const SpecPtr cast = MakeSpec(0, "w", SignatureOf(OpKind::kBroadcast));
  Signature two;
  two.kind = OpKind::kAddProcessSet;
  two.ranks = {0, 2};
  std::vector<ControlEvent> all, mixed, sets, gathers, huge;
  for (Rank rank = 0; rank < 4; ++rank) {
    all.push_back(Announces(rank, w));
    mixed.push_back(Announces(rank, rank == 2 ? cast : w));
    sets.push_back(Announces(rank, MakeSpec(0, "", two)));
    gathers.push_back(Announces(rank, gather, {rank}));
    huge.push_back(Announces(rank, gather, {int64_t{1} << 58}));
    all.push_back(Announces(rank, group));
  }
  for (const Rank rank : {0, 2}) {
    sets.push_back(Announces(rank, MakeSpec(1, "", SignatureOf(OpKind::kBarrier, 0))));
  }
  all.push_back({1, Done{0, 1}});
  all.push_back(Announces(3, w));
  all.push_back({3, Waited{1 << 16, 0}});
  all.push_back({2, Expire{1 << 16, 0}});
  all.push_back({0, Leave{}});
  Write("events", Events(all));
  Write("events_mismatch", Events(mixed));
  Write("events_process_set", Events(sets));
  Write("events_allgather", Events(gathers));
  Write("events_allgather_overflow", Events(huge));
  Write("events_allgather_without_dims", Events({Announces(0, gather)}));
}

void Plans() {
  const SpecPtr w = MakeSpec(0, "w", SignatureOf(OpKind::kAllreduce));
  const TensorId id = 1 << 16;
  Order order;
  order.batch.push_back({id, 0, {}});
  Write("plan", Plans({Define{id, w}, order, Forget{id}, SetAdded{1, {0, 1}, 0},
                       Reject{w, 0, {0, 1}, absl::InvalidArgumentError("no")}, Left{2}}));
  Write("plan_left_nobody", Plans({Left{60'000}}));
  order.batch[0].first_dims = {1, 2, 3};
  Write("plan_dims_of_allreduce", Plans({Define{id, w}, order}));
}

void Log() {
  LogLayout layout;
  layout.writers = 2;
  layout.words = 16;
  layout.side_bytes = 256;
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> memory((layout.bytes() + 63) / 64);
  HostLog log(memory.data(), layout, 0);
  (void)AppendEvent(Announces(0, MakeSpec(0, "w", SignatureOf(OpKind::kAllreduce))), &log);
  (void)AppendEvent({0, Waited{1 << 16, 3}}, &log);
  (void)AppendEvent({0, Done{0, 1}}, &log);
  (void)AppendEvent({0, Leave{}}, &log);
  Write("log", "l" + std::string(reinterpret_cast<const char*>(memory.data()), layout.bytes()));
}

void Rest() {
  const SessionScope scope = {"secret", "job", 1};
  Handshake client = Handshake::Client(scope, 1, 0, {7});
  Handshake server = Handshake::Server(scope, 0, {8});
  const std::string hello = client.Begin();
  const std::string reply = *server.Receive(hello);
  Write("handshake_server", "s" + hello + *client.Receive(reply));
  Write("handshake_client", "c" + reply);
  Write("frame", "f" + FrameWriter({1, 1, 0}, SessionKey{8}).Write(FrameType::kPlan, "payload"));
  Failure failure;
  failure.rank = 2;
  failure.host = "host";
  failure.cause = "killed";
  failure.operation = "allreduce";
  failure.tensor = "w";
  Write("failure", "x" + EncodeFailure(failure));
}

}  // namespace
}  // namespace rueda

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus FOLDER\n");
    return 2;
  }
  rueda::folder = argv[1];
  rueda::Events();
  rueda::Plans();
  rueda::Log();
  rueda::Rest();
  return 0;
}
