#include "test/sim/simulation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>

#include "absl/strings/str_cat.h"
#include "controller/bus/hosts_bus.h"
#include "controller/bus/log_bus.h"
#include "controller/negotiation/member.h"
#include "core/base/log.h"

namespace rueda::sim {
namespace {

constexpr Nanos kTimeLimit = 3'600 * kSecond;
constexpr size_t kErrorsShown = 10;

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

uint64_t MixText(uint64_t hash, const std::string& text) {
  for (const char c : text) hash = Mix(hash, static_cast<uint8_t>(c));
  return Mix(hash, text.size());
}

struct FreeDeleter {
  void operator()(void* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<void, FreeDeleter>;

// One operation of the workload, the same for all members but for an injected mismatch.
struct Task {
  SpecPtr spec;
  SpecPtr wrong;  // what `odd_rank` submits instead; null: nobody is odd
  Rank odd_rank = -1;
  bool waited = false;
};

struct Link {  // one direction between a leader and the root; messages stay in order
  Nanos last_arrival = 0;
};

class Simulation {
 public:
  explicit Simulation(const Options& options);
  Report Run();

 private:
  struct Batch {
    std::vector<Token> tokens;
    std::string label;
  };
  struct RankState;
  class SimCourier;

  // A batch of one lane as the made-up data plane sees it: it ends when all members have begun it.
  struct Rendezvous {
    int begun = 0;
    std::vector<Rank> waiting;
  };

  void At(Nanos time, std::function<void()> what);
  Nanos Delay(Nanos typical);
  void Error(std::string text);
  void MakeSchedule();
  void ScheduleTurn(Rank rank, Nanos time);
  void Turn(Rank rank);
  bool Loses(Rank rank, const ControlEvent& event);
  void Spoil(Rank rank, Plan* plan);
  void SubmitNext(RankState& state);
  void Handle(RankState& state, const Action& action);
  void StartBatch(RankState& state, SetId lane);
  void EndBatch(Rank rank, SetId lane);
  void EndOperation(RankState& state, Token token, const absl::Status& status);
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

  std::vector<Memory> log_memory_;
  std::vector<std::unique_ptr<RankState>> ranks_;
  std::map<Rank, std::unique_ptr<SimCourier>> couriers_;     // by leader
  std::vector<std::vector<Task>> steps_;                     // by step
  std::vector<std::vector<Rank>> sets_;                      // planned; [0] is the world
  std::map<std::pair<SetId, uint64_t>, Rendezvous> data_;    // by lane and number of the batch
  std::map<std::pair<SetId, uint64_t>, std::string> first_;  // what the first member executed there
  std::map<std::string, std::string> failures_;  // by operation: the first member's words
  Report report_;
};

struct Simulation::RankState {
  RankState(Rank r, int world) : rank(r), member(r, world) {}

  const Rank rank;
  Member member;
  std::unique_ptr<Bus> bus;
  HostsBus* hosts_bus = nullptr;

  // The workload, as this rank goes through it.
  int step = -1;
  std::vector<int> order;  // tasks of the step, shuffled
  size_t next = 0;
  int outstanding = 0;
  bool sets_asked = false;
  std::vector<Token> free_tokens;
  Token tokens = 0;
  std::map<Token, std::string> in_flight;  // token -> label

  struct Lane {
    std::deque<Batch> queue;
    uint64_t started = 0;
    uint64_t executed = 0;
    bool running = false;
  };
  std::vector<Lane> lanes = std::vector<Lane>(1);
  int left = 0;  // ranks known to have left
  bool leave_sent = false;
  Nanos turn_at = kForever;  // the scheduled turn
};

// Carries messages with a delay and in order, as TCP does.
class Simulation::SimCourier : public Courier {
 public:
  SimCourier(Simulation* simulation, Rank leader) : sim_(simulation), leader_(leader) {}

  void SendEventsToRoot(std::string packed) override {
    Deliver(&to_root_, packed.size(), [this, packed = std::move(packed)] {
      RankState& root = *sim_->ranks_[0];
      const absl::Status status =
          root.hosts_bus->DeliverEvents(packed, sim_->HostOf(leader_), sim_->now_);
      if (!status.ok()) sim_->Error(absl::StrCat("root: ", status.message()));
      sim_->ScheduleTurn(0, sim_->now_);
    });
  }
  void SendPlanToLeaders(const std::string& packed) override {
    const int size = sim_->HostSize();
    for (Rank leader = size; leader < sim_->options_.ranks; leader += size) {
      sim_->couriers_[leader]->FromRoot(packed);
    }
  }
  void FromRoot(const std::string& packed) {
    Deliver(&from_root_, packed.size(), [this, packed] {
      sim_->ranks_[leader_]->hosts_bus->DeliverPlan(packed);
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
  Link to_root_;
  Link from_root_;
};

// Set-up --------------------------------------------------------------------------------------

Simulation::Simulation(const Options& options) : options_(options), random_(options.seed) {
  CoordinatorOptions coordinator;
  coordinator.world_size = options.ranks;
  coordinator.bucket_bytes = options.bucket_bytes;
  if (options.tensor_ids_max > 0) coordinator.tensor_ids_max = options.tensor_ids_max;
  MakeSchedule();
  for (Rank leader = 0; leader < options.ranks; leader += HostSize()) {
    const std::vector<Rank> host = HostOf(leader);
    LogLayout layout = LogLayout::For(static_cast<int>(host.size()));
    layout.side_bytes = 1 << 20;
    if (options.log_words > 0) {
      layout.words = options.log_words;
      while (layout.words < 4 * layout.writers) layout.words *= 2;
    }
    void* memory = std::aligned_alloc(64, (layout.bytes() + 63) / 64 * 64);
    std::memset(memory, 0, layout.bytes() - layout.writers * layout.side_bytes);
    log_memory_.emplace_back(memory);
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

void Simulation::MakeSchedule() {
  sets_.emplace_back();
  for (Rank rank = 0; rank < options_.ranks; ++rank) sets_[0].push_back(rank);
  for (int i = 0; i < options_.process_sets && options_.ranks > 2; ++i) {
    std::vector<Rank> ranks;
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      if (random_() % 2 == 0) ranks.push_back(rank);
    }
    if (ranks.empty()) ranks.push_back(static_cast<Rank>(random_() % options_.ranks));
    if (std::find(sets_.begin(), sets_.end(), ranks) == sets_.end()) sets_.push_back(ranks);
  }
  for (int step = 0; step < options_.steps; ++step) {
    steps_.emplace_back();
    for (int t = 0; t < options_.tensors_per_step; ++t) {
      const SetId set = random_() % 4 == 0 ? static_cast<SetId>(random_() % sets_.size()) : 0;
      const std::vector<Rank>& members = sets_[set];
      // What a name means does not change from step to step, but for one in ten.
      std::mt19937_64 shape(random_() % 10 == 0 ? random_() : static_cast<uint64_t>(t));
      Signature signature;
      signature.kind = OpKind::kAllreduce;
      signature.reduce_op = shape() % 5 == 0 ? ReduceOp::kMax : ReduceOp::kSum;
      const int parts = shape() % 8 == 0 ? 3 : 1;
      for (int part = 0; part < parts; ++part) {
        signature.parts.push_back({shape() % 4 == 0 ? DType::kInt64 : DType::kFloat32,
                                   Shape({static_cast<int64_t>(shape() % 3'000)})});
        if (parts > 1) signature.part_names.push_back(absl::StrCat("part", part));
      }
      Task task;
      // Unnamed operations match by order, so only tasks that no rank shuffles may be unnamed: see
      // SubmitNext, which keeps them in place.
      const std::string name = t % 7 == 3 ? "" : absl::StrCat("t", t);
      task.spec = MakeSpec(set, name, signature);
      task.waited = random_() % 5 == 0;
      if (members.size() > 1 &&
          static_cast<double>(random_() % 10'000) < options_.mismatch_share * 10'000) {
        task.odd_rank = members[random_() % members.size()];
        signature.parts[0].shape = Shape({static_cast<int64_t>(4'000 + random_() % 10)});
        task.wrong = MakeSpec(set, name, signature);
      }
      steps_.back().push_back(std::move(task));
    }
  }
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
      if (state.bus->MustAnnounceDone(lane, state.member.completed_on(lane))) {
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
  const Nanos look = state.bus->Look(now_, &reports);
  for (const std::string& report : reports) RUEDA_LOG(Warning) << "stall: " << report;
  if (look != kForever) ScheduleTurn(rank, std::max(look, now_ + 1));
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
    if (order == nullptr || options_.defect != Defect::kReorderPlan) continue;
    if (last != nullptr && last->lane == order->lane) {
      std::swap(last->batch, order->batch);
      report_.defect_done = true;
      return;
    }
    last = order;
  }
}

// Submits one more operation of the workload, or goes on to the next step, or shuts down.
void Simulation::SubmitNext(RankState& state) {
  const auto submit = [&](const SpecPtr& spec, bool waited, const std::string& label) {
    Token token = state.tokens;
    if (state.free_tokens.empty()) {
      ++state.tokens;
    } else {
      token = state.free_tokens.back();
      state.free_tokens.pop_back();
    }
    state.in_flight[token] = label;
    ++state.outstanding;
    state.member.Submit(token, spec, {}, waited);
    if (!waited && random_() % 6 == 0) state.member.MarkWaited(token);
    ScheduleTurn(state.rank, now_ + Delay(20 * kMicrosecond));
  };
  if (!state.sets_asked) {
    state.sets_asked = true;
    for (size_t set = 1; set < sets_.size(); ++set) {
      Signature signature;
      signature.kind = OpKind::kAddProcessSet;
      signature.ranks = sets_[set];
      submit(MakeSpec(kWorldSet, "", signature), true, absl::StrCat("set ", set));
    }
    if (sets_.size() > 1) return;
  }
  if (state.next == state.order.size()) {
    if (state.outstanding > 0) return;
    if (state.step + 1 == options_.steps) {
      if (!state.leave_sent) state.member.AnnounceLeave();
      state.leave_sent = true;
      return;
    }
    ++state.step;
    state.next = 0;
    state.order.clear();
    const std::vector<Task>& tasks = steps_[state.step];
    std::vector<int> named;
    for (int t = 0; t < static_cast<int>(tasks.size()); ++t) {
      const std::vector<Rank>& members = sets_[tasks[t].spec->set];
      if (!std::binary_search(members.begin(), members.end(), state.rank)) continue;
      state.order.push_back(t);
      if (!tasks[t].spec->unnamed()) named.push_back(t);
    }
    // Named tensors come in an order of this rank's own; unnamed ones stay where they are.
    std::shuffle(named.begin(), named.end(), random_);
    for (int& t : state.order) {
      if (tasks[t].spec->unnamed()) continue;
      t = named.back();
      named.pop_back();
    }
    if (state.order.empty()) return ScheduleTurn(state.rank, now_ + 1);
  }
  const int t = state.order[state.next++];
  const Task& task = steps_[state.step][t];
  submit(task.odd_rank == state.rank ? task.wrong : task.spec, task.waited,
         absl::StrCat("step ", state.step, " task ", t));
}

void Simulation::Handle(RankState& state, const Action& action) {
  if (const auto* launch = std::get_if<Launch>(&action)) {
    Batch batch;
    for (const LaunchItem& item : launch->items) {
      batch.tokens.push_back(item.token);
      absl::StrAppend(&batch.label, state.in_flight[item.token], ";");
    }
    RankState::Lane& lane = state.lanes[launch->lane];
    // Agreement: the n-th batch of a lane is the same for all members.
    const auto [first, is_new] =
        first_.emplace(std::make_pair(launch->lane, lane.started), batch.label);
    if (first->second != batch.label) {
      Error(absl::StrCat("agreement: batch ", lane.started, " of lane ", launch->lane, " is '",
                         batch.label, "' on rank ", state.rank, " and '", first->second,
                         "' on another"));
    }
    if (is_new && launch->lane == kWorldSet) ++report_.batches;
    ++lane.started;
    report_.digest = MixText(Mix(report_.digest, static_cast<uint64_t>(state.rank)), batch.label);
    lane.queue.push_back(std::move(batch));
    StartBatch(state, launch->lane);
  } else if (const auto* failure = std::get_if<Rejected>(&action)) {
    const std::string label = state.in_flight[failure->token];
    const std::string words(failure->status.message());
    if (failures_.emplace(label, words).first->second != words) {
      Error(absl::StrCat("uniformity: ", label, " fails in different words"));
    }
    report_.digest = MixText(report_.digest, words);
    EndOperation(state, failure->token, failure->status);
  } else if (const auto* added = std::get_if<NewSet>(&action)) {
    state.lanes.emplace_back();
    if (!added->asked) Error("validity: a process set that nobody asked for");
    EndOperation(state, added->token, absl::OkStatus());
  } else {
    ++state.left;
  }
}

void Simulation::StartBatch(RankState& state, SetId lane_id) {
  RankState::Lane& lane = state.lanes[lane_id];
  if (lane.running || lane.queue.empty()) return;
  lane.running = true;
  Rendezvous& meeting = data_[{lane_id, lane.executed}];
  meeting.waiting.push_back(state.rank);
  const std::vector<Rank>& members = sets_[lane_id];
  if (++meeting.begun < static_cast<int>(members.size())) return;
  for (const Rank rank : meeting.waiting) {
    At(now_ + Delay(50 * kMicrosecond), [this, rank, lane_id] { EndBatch(rank, lane_id); });
  }
  data_.erase({lane_id, lane.executed});
}

void Simulation::EndBatch(Rank rank, SetId lane_id) {
  RankState& state = *ranks_[rank];
  RankState::Lane& lane = state.lanes[lane_id];
  const Batch batch = std::move(lane.queue.front());
  lane.queue.pop_front();
  lane.running = false;
  ++lane.executed;
  state.member.CompletedBatch(lane_id);
  for (const Token token : batch.tokens) EndOperation(state, token, absl::OkStatus());
  StartBatch(state, lane_id);
  ScheduleTurn(rank, now_);
}

void Simulation::EndOperation(RankState& state, Token token, const absl::Status& status) {
  const auto it = state.in_flight.find(token);
  if (it == state.in_flight.end()) {
    Error(absl::StrCat("validity: token ", token, " of rank ", state.rank, " ended twice"));
    return;
  }
  ++report_.operations;
  if (!status.ok()) {
    ++report_.rejected;
    int step = 0, task = 0;
    if (std::sscanf(it->second.c_str(), "step %d task %d", &step, &task) != 2 ||
        steps_[step][task].odd_rank < 0) {
      Error(absl::StrCat("validity: ", it->second, " failed: ", status.message()));
    }
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
    for (const auto& [token, label] : state->in_flight) {
      if (waiting.size() < 200) absl::StrAppend(&waiting, " ", label, ";");
    }
    Error(absl::StrCat("liveness: rank ", state->rank, " stopped at step ", state->step, " with ",
                       state->outstanding, " operations in flight,", waiting, " and saw ",
                       state->left, " ranks leave"));
  }
  for (const auto& [label, words] : failures_) {
    (void)words;
    int step = 0, task = 0;
    if (std::sscanf(label.c_str(), "step %d task %d", &step, &task) != 2) continue;
    if (steps_[step][task].odd_rank < 0) Error(absl::StrCat("validity: ", label, " failed"));
  }
}

}  // namespace

Report Run(const Options& options) {
  return Simulation(options).Run();
}

}  // namespace rueda::sim
