// Writes the seeds of the fuzz corpus: valid inputs for each reader that between them have every
// message and every field, and some that once broke something.
//
//   make_corpus FOLDER
#include <cstdio>
#include <fstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "controller/bus/log_codec.h"
#include "controller/failure/failure.h"
#include "controller/launcher/agent/agent_words.h"
#include "controller/protocol/authentication.h"
#include "controller/protocol/codec.h"
#include "controller/protocol/frame.h"
#include "controller/rendezvous/meeting.h"
#include "core/base/check.h"
#include "core/base/limits.h"
#include "test/fuzz/fuzz_job.h"

namespace rueda {
namespace {

std::string folder;

constexpr SetId kPairSet = 1;  // of the start: ranks 1 and 3
constexpr TensorId kFirstId = 1 << 16;

// `name`: the reader's letter, an underscore, and what it is.
void Write(const std::string& name, const std::string& content) {
  std::ofstream(folder + "/" + name, std::ios::binary) << name[0] << content;
}

Signature SignatureOf(OpKind kind, int parts = 1) {
  const KindTraits& traits = TraitsOf(kind);
  Signature signature;
  signature.kind = kind;
  if (traits.reduces) signature.reduce_op = ReduceOp::kSum;
  if (traits.rooted) signature.root = 1;
  if (kind == OpKind::kSendRecv) signature.peer = 3;
  if (traits.has_ranks) signature.ranks = {0, 2};
  for (int i = 0; traits.tensors() && i < parts; ++i) {
    signature.parts.push_back({DType::kFloat32, {4}});
    if (parts > 1) signature.part_names.push_back(std::string(1, static_cast<char>('a' + i)));
  }
  return signature;
}

SpecPtr Spec(OpKind kind, std::string name, int parts = 1) {
  return MakeSpec(kWorldSet, std::move(name), SignatureOf(kind, parts));
}

ControlEvent Announces(Rank rank, SpecPtr spec, std::vector<int64_t> first_dims = {}) {
  Announcement announcement;
  announcement.spec = std::move(spec);
  announcement.waited = true;
  announcement.extras.first_dims = std::move(first_dims);
  return {rank, Announced{std::move(announcement)}};
}

ControlEvent AnnouncesScaled(Rank rank, TensorId id, double prescale) {
  Announcement announcement;
  announcement.id = id;
  announcement.done = 1;
  announcement.extras.scaling.prescale = prescale;
  announcement.extras.scaling.postscale = 0.5;
  return {rank, Announced{std::move(announcement)}};
}

// What a rank says beside an operation of this kind, when it brings `rows` rows.
std::vector<int64_t> FirstDims(OpKind kind, Rank rank, int64_t rows) {
  switch (kind) {
    case OpKind::kAllgather:
    case OpKind::kGather:
      return {rows};
    case OpKind::kAlltoall:
      return rank % 2 == 0 ? std::vector<int64_t>{4 * rows}
                           : std::vector<int64_t>{rows, 0, rows, 1};
    case OpKind::kScatter:
      return rank == 1 ? std::vector<int64_t>{1, rows, 3, 0} : std::vector<int64_t>{};
    case OpKind::kRemoveProcessSet:
      return {0};
    default:
      return {};
  }
}

// All who take part announce it.
std::vector<ControlEvent> Whole(const SpecPtr& spec, int64_t rows = 2) {
  const Signature& signature = spec->signature;
  std::vector<ControlEvent> events;
  for (Rank rank = 0; rank < kFuzzWorld; ++rank) {
    if (signature.peer >= 0 && rank != signature.root && rank != signature.peer) continue;
    if (spec->set == kPairSet && rank % 2 == 0) continue;
    events.push_back(Announces(rank, spec, FirstDims(signature.kind, rank, rows)));
  }
  return events;
}

void Append(std::vector<ControlEvent> more, std::vector<ControlEvent>* events) {
  events->insert(events->end(), more.begin(), more.end());
}

std::string Packed(const std::vector<ControlEvent>& events) {
  return PackEvents(events, 1 << 20)[0];
}
std::string Packed(const Plan& plan) {
  return PackPlan(plan, 1 << 20)[0];
}

void WriteKinds() {
  for (int i = 0; i < kOpKindCount; ++i) {
    const OpKind kind = static_cast<OpKind>(i);
    const std::string name(OpKindName(kind));
    std::vector<ControlEvent> events;
    if (kind == OpKind::kRemoveProcessSet) events = Whole(Spec(OpKind::kAddProcessSet, ""));
    Append(Whole(Spec(kind, "")), &events);
    const bool named = kind < OpKind::kJoin;
    if (named) Append(Whole(Spec(kind, "w")), &events);
    Write("e_" + name, Packed(events));
    if (!TraitsOf(kind).groups) continue;
    events.clear();
    for (Rank rank = 0; rank < kFuzzWorld; ++rank) {
      std::vector<int64_t> dims;
      if (TraitsOf(kind).ragged) dims = {rank, 1, 2};
      events.push_back(Announces(rank, Spec(kind, "g", 3), dims));
    }
    Write("e_group_of_" + name, Packed(events));
  }
}

void WriteEvents() {
  std::vector<ControlEvent> events = Whole(Spec(OpKind::kAllreduce, "w"));
  for (Rank rank = 0; rank < kFuzzWorld; ++rank) {
    events.push_back(AnnouncesScaled(rank, kFirstId, 2));
  }
  events.push_back({1, Done{kWorldSet, 1}});
  for (Rank rank = 0; rank < kFuzzWorld; ++rank) {
    events.push_back(AnnouncesScaled(rank, kFirstId, rank));
  }
  events.push_back({3, Waited{kFirstId, 0}});
  events.push_back(AnnouncesScaled(2, kFirstId, 2));
  events.push_back({0, Expire{kFirstId, 0}});
  events.push_back({0, Leave{}});
  Write("e_life_of_a_tensor", Packed(events));

  events = Whole(Spec(OpKind::kAllreduce, "w"));
  events[2] = Announces(2, Spec(OpKind::kBroadcast, "w"));
  Write("e_mismatch", Packed(events));
  Signature compressed = SignatureOf(OpKind::kAllreduce);
  compressed.compression = {Compressor::kTopK, 10'000, true};
  Write("e_compressed", Packed(Whole(MakeSpec(kWorldSet, "c", compressed))));
  Write("e_overflow", Packed(Whole(Spec(OpKind::kAllgather, "g"), int64_t{1} << 58)));
  Write("e_no_dims", Packed({Announces(0, Spec(OpKind::kAllgather, "g"))}));

  events = Whole(Spec(OpKind::kAllreduce, "w"));
  for (ControlEvent& event : events) {
    std::get<Announced>(event.what).announcement.extras.SayData(std::string(16, 'x'));
  }
  Write("e_data", Packed(events));
  std::get<Announced>(events[2].what).announcement.extras.SayData("of another size");
  Write("e_data_of_another_size", Packed(events));
  std::get<Announced>(events[2].what).announcement.extras.SayFault("no tensor");
  Write("e_fault", Packed(events));

  events = {Announces(0, Spec(OpKind::kAllreduce, "w"))};
  for (const Blocked::Level level :
       {Blocked::kForMoments, Blocked::kForTheLimit, Blocked::kStill}) {
    for (Rank rank = 0; rank < kFuzzWorld; ++rank) events.push_back({rank, Blocked{level, 1}});
  }
  for (Rank rank = 0; rank < kFuzzWorld; ++rank) events.push_back({rank, Asked{}});
  Write("e_deadlock", Packed(events));

  events = {{0, Wished{1}}, {3, Wished{4}}};
  Append(Whole(Spec(OpKind::kAllreduce, "w")), &events);
  events.push_back({2, Wished{5}});
  events.push_back({2, Wished{255}});
  Write("e_wishes", Packed(events));

  // More names than ids.
  events.clear();
  for (int i = 0; i < 10; ++i) Append(Whole(Spec(OpKind::kBarrier, std::to_string(i))), &events);
  Write("e_forgotten", Packed(events));
}

void WriteJoins() {
  const SpecPtr join = Spec(OpKind::kJoin, "");
  const SpecPtr reduce = Spec(OpKind::kAllreduce, "");
  std::vector<ControlEvent> events = {Announces(2, join), Announces(0, reduce),
                                      Announces(1, reduce), Announces(3, reduce)};
  for (const Rank rank : {0, 1, 3}) events.push_back(Announces(rank, join));
  Append(Whole(reduce), &events);
  Write("e_join", Packed(events));

  events.resize(4);
  events.push_back({0, Expire{kFirstId, 0}});
  events.push_back(Announces(2, reduce));
  events.push_back(Announces(0, join));
  events.push_back({1, Leave{}});
  Write("e_join_expires", Packed(events));

  events.resize(4);
  events.push_back(Announces(1, MakeSpec(kPairSet, "", SignatureOf(OpKind::kJoin))));
  events.push_back(Announces(1, Spec(OpKind::kBarrier, "")));
  events.push_back({3, Leave{}});
  Write("e_joined_rejected_left", Packed(events));
}

void WriteSets() {
  const SpecPtr add = Spec(OpKind::kAddProcessSet, "");
  const SpecPtr remove = Spec(OpKind::kRemoveProcessSet, "");
  const SpecPtr barrier = MakeSpec(kPairSet + 1, "", SignatureOf(OpKind::kBarrier));
  std::vector<ControlEvent> events;
  for (int generation = 0; generation < 2; ++generation) {
    Append(Whole(add), &events);
    for (const Rank rank : {0, 2}) events.push_back(Announces(rank, barrier));
    events.push_back({2, Done{kPairSet + 1, 1}});
    Append(Whole(remove), &events);
  }
  Append(Whole(MakeSpec(kPairSet, "w", SignatureOf(OpKind::kAllreduce))), &events);
  Write("e_sets", Packed(events));

  events = Whole(add);
  events.push_back(Announces(0, barrier));
  Append(Whole(remove), &events);
  Write("e_removed_while_pending", Packed(events));
}

Plan EveryItem() {
  Signature pair = SignatureOf(OpKind::kSendRecv);
  std::swap(pair.root, pair.peer);
  const SpecPtr w = Spec(OpKind::kAllreduce, "w");
  Order with_absent;
  with_absent.batch.push_back({kFirstId, 7, {}});
  with_absent.absent = {1, 2};
  with_absent.scaling.prescale = 2;
  with_absent.scaling.postscale = 0.5;
  Order of_pair;
  of_pair.batch.push_back({kFirstId + 1, 0, {}});
  of_pair.from = 3;
  of_pair.to = 1;
  Order of_rows;
  of_rows.lane = kPairSet;
  of_rows.batch.push_back({kFirstId + 2, 0, {1, 2, 3, 4}});
  Order with_data;
  with_data.batch.push_back({kFirstId, 8, {}});
  with_data.data = std::make_shared<const std::vector<std::string>>(kFuzzWorld, "sixteen bytes...");
  return {Define{kFirstId, w},
          Define{kFirstId + 1, MakeSpec(kWorldSet, "p", pair)},
          Define{kFirstId + 2, MakeSpec(kPairSet, "", SignatureOf(OpKind::kAlltoall))},
          with_absent,
          of_pair,
          of_rows,
          with_data,
          Forget{kFirstId},
          SetAdded{2, {0, 1}, 0},
          SetRemoved{2, 0},
          Reject{w, 3, {0, 1}, absl::InvalidArgumentError("no")},
          Joined{kPairSet, 3, 0},
          Left{2},
          StillBlocked{1},
          Told{1, w, 2, "missing: rank 0"},
          Agreed{5}};
}

void WritePlans() {
  const Plan every = EveryItem();
  Write("p_every_item", Packed(every));
  for (size_t i = 3; i < every.size(); ++i) {
    Write("p_item_" + std::to_string(i), Packed(Plan{every[0], every[1], every[2], every[i]}));
  }
  // What rank 1 has submitted.
  Order order;
  order.batch.push_back({kFirstId, 0, {}});
  const SpecPtr barrier = Spec(OpKind::kBarrier, "");
  Order of_barrier;
  of_barrier.batch.push_back({kFirstId + 1, 0, {}});
  const SpecPtr join = MakeSpec(kPairSet, "", SignatureOf(OpKind::kJoin));
  Write("p_ordered", Packed(Plan{Define{kFirstId, Spec(OpKind::kAllreduce, "w")}, order,
                                 Define{kFirstId + 1, barrier}, of_barrier, Joined{1, 1, 0}}));
  Write("p_rejected", Packed(Plan{Reject{barrier, 5, {0}, absl::InternalError("")},
                                  Reject{join, 0, {1}, absl::DeadlineExceededError("late")}}));
  Write("p_left_nobody", Packed(Plan{Left{60'000}}));
  order.batch[0].first_dims = {1, 2, 3};
  Write("p_dims_of_allreduce", Packed(Plan{every[0], order}));
  order.batch[0].first_dims.clear();
  order.data = std::make_shared<const std::vector<std::string>>(kFuzzWorld, "sixteen bytes...");
  Write("p_data", Packed(Plan{every[0], order}));
  order.data = std::make_shared<const std::vector<std::string>>(2, "of two");
  Write("p_data_of_some", Packed(Plan{every[0], order}));
}

// Texts that are long enough for corpus_main.cc to lie about.
void WriteTexts() {
  Signature signature = SignatureOf(OpKind::kAllreduce, 2);
  for (std::string& name : signature.part_names) name = "part_" + name;
  const SpecPtr spec = MakeSpec(kWorldSet, "group_of_two", std::move(signature));
  Write("e_texts", Packed({Announces(1, spec)}));
  Write("p_texts_defined", Packed(Plan{Define{kFirstId, spec}}));
  Write("p_texts_rejected",
        Packed(Plan{Reject{spec, 0, {1}, absl::InternalError("for a reason")}}));
}

void WriteLogs() {
  const SpecPtr w = Spec(OpKind::kAllreduce, "w");
  FuzzLog announced;
  HostLog first = announced.Open(0), second = announced.Open(1);
  const auto append = [](const ControlEvent& event, HostLog* log) {
    const absl::StatusOr<bool> appended = AppendEvent(event, log);
    RUEDA_CHECK(appended.ok() && *appended);
  };
  append(Announces(0, w), &first);
  append(Announces(1, w), &second);
  Announcement by_id;
  by_id.id = kFirstId;
  append({1, Announced{by_id}}, &second);
  append(AnnouncesScaled(0, kFirstId, 2), &first);
  append({0, Waited{kFirstId, 0}}, &first);
  append({0, Done{0, 1}}, &first);
  append({0, Expire{kFirstId, 0}}, &first);
  append({0, Blocked{Blocked::kStill, 1}}, &first);
  append({1, Wished{5}}, &second);
  append({1, Leave{}}, &second);
  Write("l_events", std::string(announced.content()));

  FuzzLog planned;
  HostLog leader = planned.Open(0);
  RUEDA_CHECK(AppendPlan(Packed(EveryItem()), &leader));
  Write("l_plan", std::string(planned.content()));
}

wire::Hello Hello(Rank rank, int ranks) {
  wire::Hello hello;
  hello.set_rank(rank);
  hello.set_size(ranks);
  hello.set_host_id(rank < 2 ? "id" : "another");
  hello.set_host_name("host");
  hello.set_pid(100 + rank);
  hello.set_version("0.1.0");
  if (rank == 0) hello.set_bus_address("127.0.0.1:4000");
  for (const auto& [name, value] : {std::pair("bus", "tcp"), std::pair("process_sets", "1,3")}) {
    wire::Knob* knob = hello.add_agreed();
    knob->set_name(name);
    knob->set_value(value);
  }
  return hello;
}

std::string RosterText(int ranks) {
  std::vector<wire::Hello> hellos;
  for (Rank rank = 0; rank < ranks; ++rank) hellos.push_back(Hello(rank, ranks));
  return MakeRoster(hellos).SerializeAsString();
}

std::string FailureText() {
  Failure failure;
  failure.rank = 2;
  failure.accuser = 1;
  failure.awaiter = 0;
  failure.pid = 4'711;
  failure.host = "host";
  failure.cause = "killed";
  failure.operation = "allreduce";
  failure.tensor = "w";
  failure.membership = 3;
  failure.recoverable = true;
  return EncodeFailure(failure);
}

std::string ReadingText() {
  wire::ClockReading reading;
  reading.set_received(1'000);
  reading.set_replied(2'000);
  return reading.SerializeAsString();
}

std::string OffsetText() {
  wire::ClockOffset offset;
  offset.set_offset(-5'000);
  offset.set_uncertainty(40);
  return offset.SerializeAsString();
}

template <typename Message>
std::string StoreText(bool with_value) {
  Message message;
  if constexpr (!std::is_same_v<Message, wire::StoreSet>) message.set_call(7);
  if constexpr (!std::is_same_v<Message, wire::StoreValue>) message.set_key("key");
  if constexpr (!std::is_same_v<Message, wire::StoreGet>) {
    if (with_value) message.set_value("value");
  }
  return message.SerializeAsString();
}

// Without its MAC, which the reader adds.
void WriteFrame(const std::string& name, FrameType type, const std::string& payload) {
  const std::string frame = FrameWriter({1, 1, 0}, SessionKey{9}).Write(type, payload);
  Write("f_" + name, frame.substr(0, frame.size() - kMacBytes));
}

void WriteMessages() {
  wire::Roster refusal = RosterOfError(absl::FailedPreconditionError("two are rank 2"));
  refusal.set_refused(2);
  const std::string store_set = StoreText<wire::StoreSet>(true);
  const std::string store_get = StoreText<wire::StoreGet>(false);
  const std::string store_value = StoreText<wire::StoreValue>(true);
  Write("h_roster", RosterText(kFuzzWorld));
  Write("h_too_few", RosterText(kFuzzWorld - 1));
  Write("h_refusal",
        RosterOfError(absl::DeadlineExceededError("rank 3 did not come")).SerializeAsString());
  Write("h_refused", refusal.SerializeAsString());
  Write("h_nothing", "");
  Write("t_reading", ReadingText());
  Write("t_offset", OffsetText());
  Write("r_set", store_set);
  Write("r_get", store_get);
  Write("r_value", store_value);
  Write("x_failure", FailureText());

  WriteFrame("hello", FrameType::kHello, Hello(1, 2).SerializeAsString());
  WriteFrame("roster", FrameType::kRoster, RosterText(kFuzzWorld));
  WriteFrame("neighbours", FrameType::kNeighbours, "");
  WriteFrame("ready", FrameType::kReady, "");
  WriteFrame("events", FrameType::kEvents, Packed(Whole(Spec(OpKind::kAllreduce, "w"))));
  WriteFrame("plan", FrameType::kPlan, Packed(EveryItem()));
  WriteFrame("failure", FrameType::kFailure, FailureText());
  WriteFrame("store_set", FrameType::kStoreSet, store_set);
  WriteFrame("store_get", FrameType::kStoreGet, store_get);
  WriteFrame("store_value", FrameType::kStoreValue, store_value);
  WriteFrame("goodbye", FrameType::kGoodbye, "");
  WriteFrame("clock", FrameType::kClock, ReadingText());
  WriteFrame("heartbeat", FrameType::kHeartbeat, "");
}

// Between a process of an elastic job and the launcher.
void WriteMemberships() {
  wire::Ask ask;
  Write("m_ask_first", ask.SerializeAsString());
  ask.set_membership(1);
  ask.set_commits(12);
  ask.set_blames(2);
  Write("m_ask", ask.SerializeAsString());
  ask.set_membership(UINT64_MAX);
  ask.set_commits(UINT64_MAX);
  ask.set_blames(kElasticProcessesMax);
  Write("m_ask_too_much", ask.SerializeAsString());
  wire::ToProcess told;
  wire::Record& record = *told.mutable_record();
  record.set_membership(3);
  for (const int32_t slot : {4, 0, kElasticProcessesMax - 1}) record.add_slots(slot);
  for (const int32_t host : {0, 0, 1}) record.add_hosts(host);
  record.set_rank(2);
  record.set_survivors(2);
  record.set_source(1);
  record.set_meeting_address("10.0.0.1:29400");
  Write("m_record", told.SerializeAsString());
  record.set_source(2);
  Write("m_record_of_a_new_source", told.SerializeAsString());
  told.mutable_change()->set_added(true);
  told.mutable_change()->add_leaving(1);
  Write("m_change", told.SerializeAsString());
  told.set_dismissal("the host is taken away");
  Write("m_dismissal", told.SerializeAsString());
  told.mutable_nothing_kept();
  Write("m_nothing_kept", told.SerializeAsString());
  wire::KeptPart part;
  part.set_name("rueda.elastic.own.0");
  part.set_number(4);
  part.set_membership(3);
  part.set_rank(2);
  part.set_offset(4'096);
  part.set_bytes(100);
  part.set_checksum(7);
  part.set_oldest(3);
  *told.mutable_kept() = part;
  Write("m_kept", told.SerializeAsString());
  wire::FromProcess word;
  *word.mutable_ask() = ask;
  Write("m_word_ask", word.SerializeAsString());
  *word.mutable_fetch() = part;
  Write("m_word_fetch", word.SerializeAsString());
  *word.mutable_keep() = part;
  Write("m_word_keep", word.SerializeAsString());
  part.set_number(UINT64_MAX);
  part.set_offset(UINT64_MAX);
  part.set_bytes(UINT64_MAX);
  part.set_oldest(UINT64_MAX);
  part.set_rank(-1);
  *word.mutable_keep() = part;
  Write("m_word_keep_too_much", word.SerializeAsString());
}

void WriteHandshakes() {
  const SessionScope scope = {"secret", "job", 1};
  Handshake client = Handshake::Client(scope, 1, 0, {7});
  Handshake server = Handshake::Server(scope, 0, {8});
  const std::string hello = client.Begin();
  const std::string reply = *server.Receive(hello);
  Write("s_handshake", hello + *client.Receive(reply));
  Write("c_handshake", reply);
  const std::string said = hello.substr(hello.size() - 48);  // membership, ranks, nonce
  Write("u_rank_1", said);
  Write("u_rank_too_high", std::string(said).replace(10, 1, 1, 1));
}

// What a peer says that has been let in.
void WriteLinks() {
  const auto frame = [](FrameType type, const std::string& payload) {
    return std::string{static_cast<char>(type), 0, static_cast<char>(payload.size())} + payload;
  };
  const std::string two = frame(FrameType::kClock, ReadingText()) + frame(FrameType::kGoodbye, "");
  Write("w_in_one", std::string(1, '\xff') + two);
  Write("w_byte_by_byte", std::string(1, 0) +
                              frame(FrameType::kStoreSet, StoreText<wire::StoreSet>(true)) +
                              frame(FrameType::kRefused, "no"));
  Write("w_descriptors_that_did_not_come", std::string("\x20\x03\x02\x01x", 5));
  Write("b_unsigned", FrameWriter({1, 1, 0}, SessionKey{9}).Write(FrameType::kGoodbye, ""));
}

void WriteSettings() {
  Write("k_knobs",
        "backend=shm\nbus=log\nfusion_threshold=1024\nwait=spin\nnetwork_interface=eth0\n"
        "start_timeout_s=1.5\nstall_warn_s=1\nstall_timeout_s=2e1\ngloo_timeout_s=.5\n"
        "log_level=debug\nrecorder_dir=/tmp\ntimeline=t.json\nhosts_fake=2");
  Write("k_process_sets", "process_sets=0,1;2-3;0-2;1");
  Write("k_process_sets_twice", "process_sets=0-65535,0-65535,0-65535,0-65535");
  Write("k_environment",
        "RUEDA_RANK=1\nRUEDA_SIZE=4\nRUEDA_LOCAL_RANK=1\nRUEDA_LOCAL_SIZE=4\nRUEDA_JOB_ID=j\n"
        "RUEDA_HOST_ID=h\nRUEDA_SECRET_FD=3\nRUEDA_SECRET_FILE=s\nRUEDA_AGENT_FD=4\n"
        "RUEDA_PROCESS_SETS=0,1\nRUEDA_TIMELINE=t.json\nRUEDA_VENV=v\nPATH=p");
  Write("k_horovod",
        "HOROVOD_FUSION_THRESHOLD=1\nHOROVOD_TIMELINE=t\nHOROVOD_LOG_LEVEL=TRACE\n"
        "HOROVOD_STALL_CHECK_TIME_SECONDS=3\nHOROVOD_RANK=0");
  Write("k_refused", "HOROVOD_ELASTIC=1");
  Write("k_unknown", "RUEDA_TIMELIME=t");
  Write("k_torchrun", "WORLD_SIZE=2\nRANK=1\nTORCHELASTIC_RUN_ID=x\nLOCAL_WORLD_SIZE=2");
  Write("k_open_mpi",
        "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=4\nOMPI_COMM_WORLD_LOCAL_SIZE=4\n"
        "PMIX_NAMESPACE=7");
  Write("k_hydra", "PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALNRANKS=2\nPMI_FD=8");
  Write("k_srun",
        "SLURM_STEP_ID=0\nSLURM_JOB_ID=1\nSLURM_PROCID=5\nSLURM_STEP_NUM_TASKS=7\n"
        "SLURM_NODEID=2\nSLURM_STEP_TASKS_PER_NODE=2(x3),1");
  Write(
      "k_tf_config",
      "TF_CONFIG={\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"a:2\", \"a:3\"], \"ps\": []}, "
      "\"task\": {\"type\": \"worker\", \"index\": 1}}");
  Write("n_hosts", "a:4,b,[fd00::1]:2,me@c:1,a:3");
  Write("n_hostfile", "# the cluster\na slots=4\n\nb:2 # comment\r\n[::1] slots=1\nc\n");
}

void WriteAgentsWords() {
  const auto write = [](const std::string& name, const google::protobuf::MessageLite& message) {
    Write("g_" + name, message.SerializeAsString());
  };
  launch::FromAgent said;
  said.mutable_hello()->set_version("ruedarun 0.1.0\n");
  said.mutable_hello()->set_host_id("boot/net/0");
  write("hello", said);
  launch::Meeting& meeting = *said.mutable_ready()->mutable_meeting();
  meeting.set_address("10.0.0.1:29400");
  meeting.set_master_address("10.0.0.1");
  meeting.set_master_port(29'500);
  write("ready", said);
  said.mutable_refusal()->set_why("no such program");
  said.mutable_refusal()->set_exit_code(127);
  write("refusal", said);
  for (const MessageKind kind : {MessageKind::kSignal, MessageKind::kRankStarted,
                                 MessageKind::kRankEnded, MessageKind::kFinished}) {
    const Message event = {kind, 2, 4711, 15, Message::kFirstFailure, 3};
    *said.mutable_event() = ToWire(event);
    write("event_" + std::to_string(static_cast<int>(kind)), said);
  }
  const auto elastic = [](MessageKind kind, absl::string_view payload) {
    return ToWire({kind, 2, 4711, 3, 0, -1, std::string(payload)});
  };
  *said.mutable_event() = elastic(MessageKind::kFromRank, "an ask");
  write("from_rank", said);
  said.mutable_output()->set_rank(3);
  said.mutable_output()->set_data("epoch 1\n");
  write("output", said);
  said.set_loss("its supervisor process was killed");
  write("loss", said);
  launch::ToAgent told;
  launch::Order& order = *told.mutable_order();
  order.set_job_id("job");
  order.set_secret("0123456789abcdef");
  order.set_size(8);
  order.set_first_rank(2);
  order.set_ranks(3);
  order.set_host(1);
  order.set_hosts(2);
  order.add_command("train");
  order.set_grace_seconds(5);
  write("order", told);
  order.set_slots(8);
  order.set_slots_here(2);
  order.set_host_name("a");
  write("order_elastic", told);
  for (const auto& [kind, name] :
       {std::pair(MessageKind::kStart, "start"), std::pair(MessageKind::kClear, "clear"),
        std::pair(MessageKind::kKill, "kill"), std::pair(MessageKind::kNoMore, "no_more")}) {
    *told.mutable_event() = elastic(kind, "");
    write(name, told);
  }
  *told.mutable_event() = elastic(MessageKind::kToRank, "a record");
  write("to_rank", told);
}

void WriteAllocations() {
  Write("a_slurm",
        "SLURM_JOB_ID=1\nSLURM_JOB_NODELIST=r[1-2]n[01-03,7]-ib,m5\nSLURM_NTASKS=19\n"
        "SLURM_TASKS_PER_NODE=2(x8),3");
  Write("a_slurm_nodes", "SLURM_JOB_ID=1\nSLURM_JOB_NODELIST=n[1-200]\nSLURM_TASKS_PER_NODE=64");
  Write("a_lsf", "LSB_JOBID=1\nLSB_MCPU_HOSTS=batch1 1 n1 42 n2 42\nCSM_ALLOCATION_ID=1");
  Write("a_lsf_repeated", "LSB_JOBID=1\nLSB_HOSTS=a a.x a.y b b");
  Write("a_pbs", "PBS_JOBID=1\nPBS_NODEFILE=f\n\na\na\nb.x\nb\n10.0.0.1\n");
}

}  // namespace
}  // namespace rueda

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus FOLDER\n");
    return 2;
  }
  rueda::folder = argv[1];
  rueda::WriteKinds();
  rueda::WriteEvents();
  rueda::WriteJoins();
  rueda::WriteSets();
  rueda::WritePlans();
  rueda::WriteTexts();
  rueda::WriteLogs();
  rueda::WriteMessages();
  rueda::WriteMemberships();
  rueda::WriteHandshakes();
  rueda::WriteLinks();
  rueda::WriteSettings();
  rueda::WriteAgentsWords();
  rueda::WriteAgentsWords();
  rueda::WriteAllocations();
  return 0;
}
