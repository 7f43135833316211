#include "test/sim/simulation.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "controller/bus/hosts_bus.h"
#include "controller/bus/log_bus.h"
#include "controller/negotiation/member.h"
#include "core/base/log.h"
#include "test/sim/mix.h"
#include "test/support/log_memory.h"

namespace rueda::sim {
namespace {

constexpr Nanos kTimeLimit = 3'600 * kSecond;
constexpr size_t kErrorsShown = 10;
constexpr int64_t kDataBytesMax = 64;  // that a rank brings with an announcement
constexpr int kRanksInDetail = 64;  // in larger jobs some things are left out: see where it is used

uint64_t MixText(uint64_t hash, const std::string& text) {
  for (const char c : text) hash = Mix(hash, static_cast<uint8_t>(c));
  return Mix(hash, text.size());
}

// One operation of the workload, the same for all who take part but for an injected mismatch.
struct Task {
  SpecPtr spec;
  SpecPtr wrong;  // what `odd_rank` submits instead; null: nobody is odd
  Rank odd_rank = -1;
  bool waited = false;
  bool may_fail = false;  // whether it does depends on when ranks join
  bool must_fail = false;
  int set = 0;  // which of the planned sets
  uint64_t dims_seed = 0;
};

const SpecPtr& SpecOf(const Task& task, Rank rank) {
  return task.odd_rank == rank ? task.wrong : task.spec;
}

// What all ranks do between two waits for everything.
struct Step {
  std::vector<Task> set_changes;  // in order
  std::vector<Task> tasks;        // in any order, but for the unnamed ones
  std::vector<Task> uneven;       // before the join every rank does some of them
  std::optional<Task> join;
};

struct Link {  // one direction between a leader and the one above it; messages stay in order
  Nanos last_arrival = 0;
};

class Simulation {
 public:
  explicit Simulation(const Options& options);
  Report Run();

 private:
  struct Batch {
    std::vector<Token> tokens;
    uint64_t number = 0;
    int participants = 0;
  };
  struct Flight {
    const Task* task;
    std::string label;
  };
  struct RankState;
  class SimCourier;

  // A batch of one lane as the made-up data plane sees it: it ends when all who take part have
  // begun it.
  struct Rendezvous {
    int begun = 0;
    std::vector<Rank> waiting;
  };

  void At(Nanos time, std::function<void()> what);
  Nanos Delay(Nanos typical);
  void Error(std::string text);
  void MakeSchedule();
  void PlanSetChanges(Step* step);
  void PlanJoin(int index, Step* step);
  Task MakeTask(int name, int set, OpKind kind, uint64_t seed);
  CallExtras ExtrasOf(const Task& task, Rank rank) const;
  bool TakesPart(const Task& task, Rank rank) const;
  void ScheduleTurn(Rank rank, Nanos time);
  void Turn(Rank rank);
  bool Loses(Rank rank, const ControlEvent& event);
  void Spoil(Rank rank, Plan* plan);
  void SubmitNext(RankState& state);
  void BeginPhase(RankState& state);
  void Submit(RankState& state, const Task& task, std::string label);
  void Handle(RankState& state, const Action& action);
  void Execute(RankState& state, const Launch& launch);
  void StartBatch(RankState& state, SetId lane);
  void EndBatch(Rank rank, SetId lane);
  template <typename Lane>
  void EndJoin(RankState& state, Lane& lane);
  void EndOperation(RankState& state, Token token, const std::string& words, bool ok);
  void CheckEnd();
  int HostSize() const {
    return options_.ranks_per_host > 0 ? options_.ranks_per_host : options_.ranks;
  }
  std::vector<Rank> HostOf(Rank leader) const {
    std::vector<Rank> ranks;
    for (Rank r = leader; r < std::min(leader + HostSize(), options_.ranks); ++r)
      ranks.push_back(r);
    return ranks;
  }

  const Options options_;
  std::mt19937_64 random_;
  Nanos now_ = 0;
  uint64_t sequence_ = 0;
  struct Event {
    Nanos time;
    uint64_t sequence;
    std::function<void()> what;
    bool operator>(const Event& other) const {
      return std::tie(time, sequence) > std::tie(other.time, other.sequence);
    }
  };
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;

  std::vector<std::unique_ptr<testing::LogMemory>> log_memory_;
  std::vector<std::unique_ptr<RankState>> ranks_;
  std::shared_ptr<const LeaderTree> leaders_;
  std::map<Rank, std::unique_ptr<SimCourier>> couriers_;  // by leader
  std::vector<Step> steps_;
  // The sets in the order of their coming; [0] is the world. Ids are used again, so that a set is
  // known by its place here.
  std::vector<std::vector<Rank>> sets_;
  std::map<SetId, int> planned_;  // while the schedule is made: the sets that are there
  std::map<std::pair<int, uint64_t>, Rendezvous> data_;  // by set and number of the batch
  // What the first rank executed there, by set, number of the batch and place in it; place -1: the
  // batch as all see it.
  std::map<std::tuple<int, uint64_t, int>, std::string> first_;
  std::map<std::string, std::string> outcomes_;  // by operation: how it ended for the first rank
  Report report_;
};

struct Simulation::RankState {
  RankState(Rank r, int world) : rank(r), member(r, world), lanes(1) { lanes[0].set = 0; }

  const Rank rank;
  Member member;
  std::unique_ptr<Bus> bus;
  HostsBus* hosts_bus = nullptr;

  // The workload, as this rank goes through it.
  int step = 0;
  int phase = -1;                  // of the step: set changes, tasks, join
  std::vector<const Task*> order;  // of the phase, shuffled
  size_t next = 0;
  int outstanding = 0;
  std::vector<Token> free_tokens;
  Token tokens = 0;
  std::map<Token, Flight> in_flight;
  int sets_seen = 1;  // how many of the planned sets have come

  struct Lane {
    int set = -1;  // of the planned sets; -1: not there, or without this rank
    std::deque<Batch> queue;
    uint64_t next = 0;  // the lowest number that may come
    bool running = false;
    std::optional<JoinDone> join;  // which has ended, but for what is in the queue
  };
  std::vector<Lane> lanes;  // by id
  int left = 0;             // ranks known to have left
  bool leave_sent = false;
  Nanos turn_at = kForever;  // the scheduled turn
};

// Carries messages with a delay and in order, as TCP does.
class Simulation::SimCourier : public Courier {
 public:
  SimCourier(Simulation* simulation, Rank leader) : sim_(simulation), leader_(leader) {}

  void SendEventsUp(std::string packed) override {
    const Rank parent = sim_->leaders_->ParentOf(leader_);
    if (parent == 0) {
      ++sim_->report_.root_messages;
      sim_->report_.root_message_bytes += packed.size();
    }
    const size_t bytes = packed.size();
    Deliver(&up_, bytes, [this, parent, packed = std::move(packed)] {
      const absl::Status status =
          sim_->ranks_[parent]->hosts_bus->DeliverEvents(packed, leader_, sim_->now_);
      if (!status.ok()) sim_->Error(absl::StrCat("leader ", parent, ": ", status.message()));
      sim_->ScheduleTurn(parent, sim_->now_);
    });
  }
  void SendPlanDown(const std::string& packed) override {
    for (const Rank child : sim_->leaders_->ChildrenOf(leader_)) {
      sim_->couriers_[child]->FromAbove(packed);
      if (leader_ == 0) {
        ++sim_->report_.root_messages;
        sim_->report_.root_message_bytes += packed.size();
      }
    }
  }
  void FromAbove(const std::string& packed) {
    Deliver(&down_, packed.size(), [this, packed] {
      const absl::Status status = sim_->ranks_[leader_]->hosts_bus->DeliverPlan(packed);
      if (!status.ok()) sim_->Error(absl::StrCat("leader ", leader_, ": ", status.message()));
      sim_->ScheduleTurn(leader_, sim_->now_);
    });
  }

 private:
  void Deliver(Link* link, size_t bytes, std::function<void()> what) {
    ++sim_->report_.messages;
    sim_->report_.message_bytes += bytes;
    link->last_arrival = std::max(link->last_arrival, sim_->now_ + sim_->Delay(30 * kMicrosecond));
    sim_->At(link->last_arrival, std::move(what));
  }
  Simulation* const sim_;
  const Rank leader_;
  Link up_;
  Link down_;
};

// Set-up --------------------------------------------------------------------------------------

Simulation::Simulation(const Options& options) : options_(options), random_(options.seed) {
  CoordinatorOptions coordinator;
  coordinator.world_size = options.ranks;
  coordinator.bucket_bytes = options.bucket_bytes;
  if (options.tensor_ids_max > 0) coordinator.tensor_ids_max = options.tensor_ids_max;
  std::vector<std::vector<Rank>> hosts;
  for (Rank leader = 0; leader < options.ranks; leader += HostSize()) {
    hosts.push_back(HostOf(leader));
  }
  leaders_ = std::make_shared<LeaderTree>(hosts, options.fan_out);
  coordinator.leaders = leaders_;
  MakeSchedule();
  for (Rank leader = 0; leader < options.ranks; leader += HostSize()) {
    const std::vector<Rank> host = HostOf(leader);
    LogLayout layout = LogLayout::For(static_cast<int>(host.size()));
    layout.side_bytes = 1 << 20;
    if (options.log_words > 0) {
      layout.words = options.log_words;
      while (layout.words < 4 * layout.writers) layout.words *= 2;
    }
    log_memory_.push_back(std::make_unique<testing::LogMemory>(layout));
    void* const memory = log_memory_.back()->data();
    if (HostSize() < options.ranks) couriers_[leader] = std::make_unique<SimCourier>(this, leader);
    for (const Rank rank : host) {
      ranks_.push_back(std::make_unique<RankState>(rank, options.ranks));
      RankState& state = *ranks_.back();
      auto log = std::make_unique<HostLog>(memory, layout, rank - leader);
      const WakeFn wake = [this](Rank whom) { ScheduleTurn(whom, now_ + Delay(5 * kMicrosecond)); };
      if (HostSize() >= options.ranks) {
        state.bus = std::make_unique<LogBus>(std::move(log), rank, coordinator, wake);
      } else {
        auto bus = std::make_unique<HostsBus>(std::move(log), host, rank, coordinator, wake,
                                              couriers_[leader].get());
        state.hosts_bus = bus.get();
        state.bus = std::move(bus);
      }
    }
  }
  for (Rank rank = 0; rank < options.ranks; ++rank) ScheduleTurn(rank, Delay(kMillisecond));
}

namespace {

// Half are allreduces.
template <typename Random>
OpKind SomeKind(Random& random, size_t members) {
  constexpr OpKind kKinds[] = {OpKind::kBroadcast,     OpKind::kAllgather, OpKind::kBarrier,
                               OpKind::kAlltoall,      OpKind::kReduce,    OpKind::kGather,
                               OpKind::kReducescatter, OpKind::kScatter,   OpKind::kSendRecv};
  const OpKind kind = random() % 2 == 0 ? OpKind::kAllreduce : kKinds[random() % std::size(kKinds)];
  return kind == OpKind::kSendRecv && members < 2 ? OpKind::kBarrier : kind;
}

}  // namespace

void Simulation::MakeSchedule() {
  sets_.emplace_back();
  for (Rank rank = 0; rank < options_.ranks; ++rank) sets_[0].push_back(rank);
  planned_[kWorldSet] = 0;
  steps_.resize(options_.steps);
  for (int index = 0; index < options_.steps; ++index) {
    Step& step = steps_[index];
    PlanSetChanges(&step);
    for (int t = 0; t < options_.tensors_per_step; ++t) {
      auto set = planned_.begin();
      if (random_() % 4 == 0) std::advance(set, random_() % planned_.size());
      // What a name means does not change from step to step, but for one in ten.
      std::mt19937_64 shape(random_() % 10 == 0 ? random_() : static_cast<uint64_t>(t));
      const OpKind kind = SomeKind(shape, sets_[set->second].size());
      step.tasks.push_back(MakeTask(t, set->first, kind, shape()));
    }
    PlanJoin(index, &step);
  }
}

// Sets come with the first step and, later, come and go; some removals are refused.
void Simulation::PlanSetChanges(Step* step) {
  const auto change = [&](OpKind kind, std::vector<Rank> ranks, uint64_t in_flight) {
    Signature signature;
    signature.kind = kind;
    signature.ranks = std::move(ranks);
    Task task;
    task.spec = MakeSpec(kWorldSet, "", signature);
    task.waited = true;
    task.dims_seed = in_flight;
    task.may_fail = in_flight > 0;
    step->set_changes.push_back(std::move(task));
  };
  for (auto it = std::next(planned_.begin()); it != planned_.end();) {
    const auto set = it++;
    if (random_() % 3 != 0) continue;
    const bool refused = random_() % 4 == 0;
    change(OpKind::kRemoveProcessSet, sets_[set->second], refused ? 1 + random_() % 3 : 0);
    if (!refused) planned_.erase(set);
  }
  while (static_cast<int>(planned_.size()) <= options_.process_sets && options_.ranks > 2) {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      if (random_() % 2 == 0) ranks.push_back(rank);
    }
    if (ranks.empty()) ranks.push_back(static_cast<Rank>(random_() % options_.ranks));
    if (std::any_of(planned_.begin(), planned_.end(),
                    [&](const auto& set) { return sets_[set.second] == ranks; })) {
      break;
    }
    SetId id = 1;
    while (planned_.contains(id)) ++id;
    planned_[id] = static_cast<int>(sets_.size());
    sets_.push_back(ranks);
    change(OpKind::kAddProcessSet, ranks, 0);
  }
}

// One step in three ends with a join: by the world, or by another set. In a large job lists of
// ranks that have joined would be most of what is simulated.
void Simulation::PlanJoin(int index, Step* step) {
  if (random_() % 3 != 0 || options_.ranks > kRanksInDetail) return;
  auto set = planned_.begin();
  std::advance(set, random_() % planned_.size());
  for (int t = 0; t < 8; ++t) {
    const OpKind kind = SomeKind(random_, sets_[set->second].size());
    step->uneven.push_back(MakeTask(1'000'000 + 100 * index + t, set->first, kind, random_()));
    // Whether ranks have joined before they could announce it.
    step->uneven.back().may_fail = true;
    step->uneven.back().must_fail = false;
  }
  Signature signature;
  signature.kind = OpKind::kJoin;
  step->join.emplace();
  step->join->spec = MakeSpec(set->first, "", signature);
  step->join->set = set->second;
  step->join->waited = true;
}

Task Simulation::MakeTask(int name, int set, OpKind kind, uint64_t seed) {
  std::mt19937_64 shape(seed);
  Task task;
  task.set = planned_.at(set);
  task.dims_seed = random_();
  const std::vector<Rank>& members = sets_[task.set];
  const KindTraits& traits = TraitsOf(kind);
  Signature signature;
  signature.kind = kind;
  if (traits.reduces) signature.reduce_op = shape() % 5 == 0 ? ReduceOp::kMax : ReduceOp::kSum;
  std::vector<Rank> participants = members;
  if (traits.rooted || kind == OpKind::kSendRecv) {
    const size_t root = shape() % members.size();
    signature.root = members[root];
    if (kind == OpKind::kSendRecv) {
      signature.peer = members[(root + 1 + shape() % (members.size() - 1)) % members.size()];
      participants = {signature.root, signature.peer};
    }
  }
  const int parts = !traits.tensors() ? 0 : traits.groups && shape() % 8 == 0 ? 3 : 1;
  for (int part = 0; part < parts; ++part) {
    signature.parts.push_back({shape() % 4 == 0 ? DType::kInt64 : DType::kFloat32,
                               Shape({static_cast<int64_t>(shape() % 3'000)})});
    if (parts > 1) signature.part_names.push_back(absl::StrCat("part", part));
  }
  // Unnamed operations match by order: see BeginPhase, which keeps them in place.
  const std::string text = name % 7 == 3 ? "" : absl::StrCat("t", name);
  task.spec = MakeSpec(set, text, signature);
  task.waited = random_() % 5 == 0;
  if (participants.size() > 1 && parts > 0 &&
      static_cast<double>(random_() % 10'000) < options_.mismatch_share * 10'000) {
    task.odd_rank = participants[random_() % participants.size()];
    signature.parts[0].shape = Shape({static_cast<int64_t>(4'000 + random_() % 10)});
    task.wrong = MakeSpec(set, text, signature);
    task.may_fail = task.must_fail = true;
  }
  return task;
}

bool Simulation::TakesPart(const Task& task, Rank rank) const {
  const Signature& signature = task.spec->signature;
  if (signature.peer >= 0) return rank == signature.root || rank == signature.peer;
  return std::binary_search(sets_[task.set].begin(), sets_[task.set].end(), rank);
}

// The first dimensions that a rank brings: the same whenever it is asked.
CallExtras Simulation::ExtrasOf(const Task& task, Rank rank) const {
  const Signature& signature = task.spec->signature;
  CallExtras extras;
  std::vector<int64_t>& dims = extras.first_dims;
  std::mt19937 random(static_cast<uint32_t>(Mix(task.dims_seed, static_cast<uint64_t>(rank))));
  const int members = static_cast<int>(sets_[task.set].size());
  switch (signature.kind) {
    case OpKind::kAllgather:
    case OpKind::kGather:
      for (size_t i = 0; i < signature.parts.size(); ++i) dims.push_back(random() % 100);
      break;
    case OpKind::kAlltoall:
    case OpKind::kScatter:
      if (signature.kind == OpKind::kScatter && rank != signature.root) break;
      // In a large set a plan of every sender's splits would be most of what is simulated.
      if (task.dims_seed % 2 == 0 || members > kRanksInDetail) {
        dims.push_back(members * static_cast<int64_t>(random() % 10));
      } else {
        for (int i = 0; i < members; ++i) dims.push_back(random() % 10);
      }
      break;
    case OpKind::kRemoveProcessSet:
      dims.push_back(rank == options_.ranks / 2 ? static_cast<int64_t>(task.dims_seed) : 0);
      break;
    case OpKind::kAllreduce:
      if (task.dims_seed % 5 == 0) extras.scaling.prescale = 0.5;
      break;
    default:
      break;
  }
  // Some ranks say what they bring, or all do.
  const int64_t bytes = BytesBrought(signature, dims, rank);
  if (members <= kRanksInDetail && task.dims_seed % 3 != 0 && bytes >= 0 &&
      bytes <= kDataBytesMax && (task.dims_seed % 7 != 0 || rank % 2 == 0)) {
    extras.SayData(std::string(static_cast<size_t>(bytes), static_cast<char>('a' + rank % 26)));
  }
  return extras;
}

void Simulation::At(Nanos time, std::function<void()> what) {
  events_.push({time, sequence_++, std::move(what)});
}

// Mostly near `typical`, now and then far longer.
Nanos Simulation::Delay(Nanos typical) {
  const Nanos base = static_cast<Nanos>(random_() % (2 * typical) + 1);
  return random_() % 50 == 0 ? base * 40 : base;
}

void Simulation::Error(std::string text) {
  if (report_.errors.size() < kErrorsShown) report_.errors.push_back(std::move(text));
}

// One rank's turn -----------------------------------------------------------------------------

void Simulation::ScheduleTurn(Rank rank, Nanos time) {
  RankState& state = *ranks_[rank];
  if (time >= state.turn_at) return;
  state.turn_at = time;
  At(time, [this, rank, time] {
    if (ranks_[rank]->turn_at != time) return;  // overtaken by an earlier one
    ranks_[rank]->turn_at = kForever;
    Turn(rank);
  });
}

void Simulation::Turn(Rank rank) {
  ++report_.turns;
  RankState& state = *ranks_[rank];
  bool moved = true;
  while (moved) {
    moved = false;
    SubmitNext(state);
    for (SetId lane = 0; lane < static_cast<SetId>(state.lanes.size()); ++lane) {
      if (state.lanes[lane].set >= 0 && !state.member.closing(lane) &&
          state.bus->TakeDone(lane, state.member.completed_on(lane))) {
        state.member.AnnounceDone(lane);
      }
    }
    while (const ControlEvent* event = state.member.Next()) {
      const absl::StatusOr<bool> sent = Loses(rank, *event) ? true : state.bus->Send(*event);
      if (!sent.ok()) Error(absl::StrCat("rank ", rank, ": ", sent.status().message()));
      if (!sent.ok() || !*sent) break;
      state.member.Pop();
      moved = true;
    }
    Plan plan;
    const absl::StatusOr<bool> read = state.bus->Poll(now_, &plan);
    if (!read.ok()) {
      Error(absl::StrCat("rank ", rank, ": ", read.status().message()));
      return;
    }
    moved |= *read;
    Spoil(rank, &plan);
    std::vector<Action> actions;
    for (const PlanItem& item : plan) {
      const absl::Status applied = state.member.Apply(item, &actions);
      if (!applied.ok()) Error(absl::StrCat("rank ", rank, ": ", applied.message()));
    }
    for (const Action& action : actions) Handle(state, action);
  }
  state.bus->BeforeSleep();
  std::vector<std::string> reports;
  const absl::StatusOr<Nanos> look = state.bus->CheckDeadlines(now_, &reports);
  if (!look.ok()) {
    Error(absl::StrCat("rank ", rank, ": ", look.status().message()));
    return;
  }
  for (const std::string& report : reports) RUEDA_LOG(Warning) << "stall: " << report;
  if (*look != kForever) ScheduleTurn(rank, std::max(*look, now_ + 1));
}

// Whether the defect takes this event away: a named tensor's announcement, since of unnamed
// operations the next would be taken for the lost one.
bool Simulation::Loses(Rank rank, const ControlEvent& event) {
  const auto* announced = std::get_if<Announced>(&event.what);
  if (options_.defect != Defect::kDropAnnouncement || report_.defect_done ||
      rank != options_.ranks - 1 || announced == nullptr) {
    return false;
  }
  const SpecPtr& spec = announced->announcement.spec;
  report_.defect_done = spec != nullptr && !spec->unnamed();
  return report_.defect_done;
}

// The defects of what a rank is told.
void Simulation::Spoil(Rank rank, Plan* plan) {
  if (report_.defect_done || rank != options_.ranks - 1) return;
  Order* last = nullptr;
  for (PlanItem& item : *plan) {
    if (auto* reject = std::get_if<Reject>(&item);
        reject != nullptr && options_.defect == Defect::kChangeRejection) {
      reject->status = absl::InvalidArgumentError("something else");
      report_.defect_done = true;
      return;
    }
    auto* order = std::get_if<Order>(&item);
    if (order == nullptr || options_.defect != Defect::kReorderPlan || order->to >= 0 ||
        !order->absent.empty()) {
      continue;
    }
    if (last != nullptr && last->lane == order->lane) {
      std::swap(last->batch, order->batch);
      report_.defect_done = true;
      return;
    }
    last = order;
  }
}

// Submits one more operation of the workload, or goes on to the next phase, or shuts down.
void Simulation::SubmitNext(RankState& state) {
  while (state.next == state.order.size()) {
    if (state.outstanding > 0) return;
    if (state.phase == 2 || (state.phase < 0 && options_.steps == 0)) {
      state.phase = -1;
      ++state.step;
    }
    if (state.step >= options_.steps) {
      if (!state.leave_sent) state.member.AnnounceLeave();
      state.leave_sent = true;
      return;
    }
    ++state.phase;
    BeginPhase(state);
  }
  const Step& step = steps_[state.step];
  const Task& task = *state.order[state.next++];
  const std::vector<Task>& list = state.phase == 0   ? step.set_changes
                                  : state.phase == 1 ? step.tasks
                                                     : step.uneven;
  const bool joins = step.join.has_value() && &task == &*step.join;
  Submit(state, task,
         joins ? absl::StrCat("step ", state.step, " join")
               : absl::StrCat("step ", state.step, " phase ", state.phase, " task ",
                              &task - list.data()));
}

void Simulation::BeginPhase(RankState& state) {
  const Step& step = steps_[state.step];
  state.next = 0;
  state.order.clear();
  if (state.phase == 0) {
    for (const Task& task : step.set_changes) state.order.push_back(&task);
    return;
  }
  const bool joins = state.phase == 2;
  if (joins && (!step.join.has_value() || !TakesPart(*step.join, state.rank))) return;
  const std::vector<Task>& tasks = joins ? step.uneven : step.tasks;
  const size_t count = joins ? random_() % (tasks.size() + 1) : tasks.size();
  std::vector<const Task*> named;
  for (size_t t = 0; t < count; ++t) {
    if (!TakesPart(tasks[t], state.rank)) continue;
    state.order.push_back(&tasks[t]);
    if (!tasks[t].spec->unnamed()) named.push_back(&tasks[t]);
  }
  // Named tensors come in an order of this rank's own; unnamed ones stay where they are.
  std::shuffle(named.begin(), named.end(), random_);
  for (const Task*& task : state.order) {
    if (task->spec->unnamed()) continue;
    task = named.back();
    named.pop_back();
  }
  if (joins) state.order.push_back(&*step.join);
}

void Simulation::Submit(RankState& state, const Task& task, std::string label) {
  Token token = state.tokens;
  if (state.free_tokens.empty()) {
    ++state.tokens;
  } else {
    token = state.free_tokens.back();
    state.free_tokens.pop_back();
  }
  state.in_flight[token] = {&task, std::move(label)};
  ++state.outstanding;
  state.member.Submit(token, SpecOf(task, state.rank), ExtrasOf(task, state.rank), task.waited);
  if (!task.waited && random_() % 6 == 0) state.member.MarkWaited(token);
  ScheduleTurn(state.rank, now_ + Delay(20 * kMicrosecond));
}

// A join ends when its lane has done everything that was ordered before, as in the engine.
template <typename Lane>
void Simulation::EndJoin(RankState& state, Lane& lane) {
  if (!lane.join.has_value() || lane.running) return;
  EndOperation(state, lane.join->token, absl::StrCat("last ", lane.join->last), true);
  lane.join.reset();
}

void Simulation::Handle(RankState& state, const Action& action) {
  if (const auto* launch = std::get_if<Launch>(&action)) {
    Execute(state, *launch);
  } else if (const auto* failure = std::get_if<Rejected>(&action)) {
    const std::string words(failure->status.message());
    report_.digest = MixText(report_.digest, words);
    EndOperation(state, failure->token, words, false);
  } else if (const auto* added = std::get_if<NewSet>(&action)) {
    const int set = state.sets_seen++;
    if (static_cast<size_t>(added->set) >= state.lanes.size()) state.lanes.resize(added->set + 1);
    state.lanes[added->set] = RankState::Lane();
    const std::vector<Rank>& ranks = sets_[set];
    if (std::binary_search(ranks.begin(), ranks.end(), state.rank)) {
      state.lanes[added->set].set = set;
    }
    if (!added->asked) Error("validity: a process set that nobody asked for");
    EndOperation(state, added->token, absl::StrCat("set ", added->set), true);
  } else if (const auto* removed = std::get_if<RemovedSet>(&action)) {
    RankState::Lane& lane = state.lanes[removed->set];
    if (lane.running || !lane.queue.empty()) Error("validity: a set is removed while it works");
    if (!removed->asked) Error("validity: a removal that nobody asked for");
    lane = RankState::Lane();
    EndOperation(state, removed->token, absl::StrCat("no set ", removed->set), true);
  } else if (const auto* joined = std::get_if<JoinDone>(&action)) {
    RankState::Lane& lane = state.lanes[state.in_flight[joined->token].task->spec->set];
    lane.join = *joined;
    EndJoin(state, lane);
  } else {
    ++state.left;
  }
}

void Simulation::Execute(RankState& state, const Launch& launch) {
  RankState::Lane& lane = state.lanes[launch.lane];
  if (lane.set < 0 || launch.number < lane.next) {
    Error(absl::StrCat("agreement: batch ", launch.number, " of lane ", launch.lane, " on rank ",
                       state.rank, " is out of order"));
    return;
  }
  lane.next = launch.number + 1;
  const bool pair = launch.items[0].spec->signature.peer >= 0;
  Batch batch;
  batch.number = launch.number;
  batch.participants = pair ? 2 : static_cast<int>(sets_[lane.set].size());
  // Agreement: batch n of a lane is the same for all who take part.
  const auto agree = [&](int place, const std::string& what) {
    const auto [first, is_new] = first_.try_emplace({lane.set, launch.number, place}, what);
    if (first->second != what) {
      Error(absl::StrCat("agreement: batch ", launch.number, " of lane ", launch.lane, " is '",
                         what, "' on rank ", state.rank, " and '", first->second, "' on another"));
    }
    return is_new;
  };
  const std::vector<std::string> data =
      launch.data == nullptr ? std::vector<std::string>() : *launch.data;
  std::string all = absl::StrCat("without ", absl::StrJoin(launch.absent, ","), " by ",
                                 launch.absent.empty() ? 1 : launch.scaling.prescale, " with ",
                                 absl::StrJoin(data, ","), ": ");
  for (const LaunchItem& item : launch.items) {
    absl::StrAppend(&all, SpecLabel(*item.spec), "[", absl::StrJoin(item.first_dims, ","), "];");
    if (item.token == kNoToken) continue;
    const Flight& flight = state.in_flight[item.token];
    if (flight.task == nullptr || !(*SpecOf(*flight.task, state.rank) == *item.spec)) {
      Error(absl::StrCat("validity: rank ", state.rank, " executes ", SpecLabel(*item.spec), " as ",
                         flight.label));
      return;
    }
    agree(static_cast<int>(batch.tokens.size()), flight.label);
    batch.tokens.push_back(item.token);
    if (batch.participants <= kRanksInDetail && !pair) {
      std::vector<std::string> brought;
      for (const Rank rank : sets_[lane.set]) {
        const CallExtras extras = ExtrasOf(*flight.task, rank);
        if (extras.data() == nullptr || !launch.absent.empty()) break;
        brought.push_back(*extras.data());
      }
      if (brought.size() < sets_[lane.set].size()) brought.clear();
      if (data != brought) {
        Error(absl::StrCat("validity: other data than was brought to ", flight.label));
      }
    }
    const OpKind kind = item.spec->signature.kind;
    if ((kind == OpKind::kAllgather || kind == OpKind::kGather) &&
        batch.participants <= kRanksInDetail) {
      std::vector<int64_t> expected;
      for (const Rank rank : sets_[lane.set]) {
        std::vector<int64_t> dims = ExtrasOf(*flight.task, rank).first_dims;
        // Who has joined brings none.
        if (std::binary_search(launch.absent.begin(), launch.absent.end(), rank))
          dims.assign(dims.size(), 0);
        expected.insert(expected.end(), dims.begin(), dims.end());
      }
      if (item.first_dims != expected) {
        Error(absl::StrCat("validity: other rows than were brought to ", flight.label));
      }
    }
  }
  if (agree(-1, all) && launch.lane == kWorldSet) ++report_.batches;
  report_.digest = MixText(Mix(report_.digest, static_cast<uint64_t>(state.rank)), all);
  lane.queue.push_back(std::move(batch));
  StartBatch(state, launch.lane);
}

void Simulation::StartBatch(RankState& state, SetId lane_id) {
  RankState::Lane& lane = state.lanes[lane_id];
  if (lane.running || lane.queue.empty()) return;
  lane.running = true;
  const Batch& batch = lane.queue.front();
  const std::pair<int, uint64_t> key(lane.set, batch.number);
  Rendezvous& meeting = data_[key];
  meeting.waiting.push_back(state.rank);
  if (++meeting.begun < batch.participants) return;
  for (const Rank rank : meeting.waiting) {
    At(now_ + Delay(50 * kMicrosecond), [this, rank, lane_id] { EndBatch(rank, lane_id); });
  }
  data_.erase(key);
}

void Simulation::EndBatch(Rank rank, SetId lane_id) {
  RankState& state = *ranks_[rank];
  RankState::Lane& lane = state.lanes[lane_id];
  const Batch batch = std::move(lane.queue.front());
  lane.queue.pop_front();
  lane.running = false;
  state.member.CompletedBatch(lane_id);
  for (const Token token : batch.tokens) EndOperation(state, token, "", true);
  StartBatch(state, lane_id);
  EndJoin(state, lane);
  ScheduleTurn(rank, now_);
}

// `words`: what the rank is told.
void Simulation::EndOperation(RankState& state, Token token, const std::string& words, bool ok) {
  const auto it = state.in_flight.find(token);
  if (it == state.in_flight.end()) {
    Error(absl::StrCat("validity: token ", token, " of rank ", state.rank, " ended twice"));
    return;
  }
  ++report_.operations;
  const Flight& flight = it->second;
  if (!ok) {
    ++report_.rejected;
    if (!flight.task->may_fail) {
      Error(absl::StrCat("validity: ", flight.label, " failed: ", words));
    }
  } else if (flight.task->must_fail) {
    Error(absl::StrCat("validity: ", flight.label, " did not fail"));
  }
  const std::string outcome = absl::StrCat(ok ? "well: " : "badly: ", words);
  if (outcomes_.emplace(flight.label, outcome).first->second != outcome) {
    Error(absl::StrCat("uniformity: ", flight.label, " ends ", outcome, " and ",
                       outcomes_[flight.label]));
  }
  state.in_flight.erase(it);
  state.free_tokens.push_back(token);
  --state.outstanding;
}

// The run ---------------------------------------------------------------------------------------

Report Simulation::Run() {
  while (!events_.empty() && now_ < kTimeLimit) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    event.what();
    if (report_.errors.size() >= kErrorsShown) break;
  }
  CheckEnd();
  report_.virtual_seconds = static_cast<double>(now_) / kSecond;
  report_.digest = Mix(report_.digest, static_cast<uint64_t>(now_));
  return report_;
}

void Simulation::CheckEnd() {
  for (const auto& state : ranks_) {
    if (state->left == options_.ranks) continue;
    std::string waiting;
    for (const auto& [token, flight] : state->in_flight) {
      if (waiting.size() < 200) absl::StrAppend(&waiting, " ", flight.label, ";");
    }
    Error(absl::StrCat("liveness: rank ", state->rank, " stopped at step ", state->step, " with ",
                       state->outstanding, " operations in flight,", waiting, " and saw ",
                       state->left, " ranks leave"));
  }
}

}  // namespace

Report Run(const Options& options) {
  return Simulation(options).Run();
}

}  // namespace rueda::sim
