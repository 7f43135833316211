#include "test/sim/training.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <random>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "controller/bus/hosts_bus.h"
#include "controller/membership/topology.h"
#include "controller/negotiation/member.h"
#include "controller/protocol/authentication.h"
#include "test/sim/mix.h"
#include "test/support/log_memory.h"

namespace rueda::sim {
namespace {

constexpr Nanos kMessageDelay = 30 * kMicrosecond;
constexpr Nanos kWakeDelay = 5 * kMicrosecond;
constexpr Nanos kForward = 10 * kMillisecond;
constexpr Nanos kBetweenBursts = 2 * kMillisecond;  // of tensors that a backward pass brings forth
constexpr int kBurst = 16;
// Hosts differ more than the ranks of one.
constexpr double kHostJitter = 0.1;
constexpr Nanos kRankJitter = 20 * kMicrosecond;
// Time has grains: what falls into one happens rank by rank.
constexpr Nanos kGrain = 20 * kMicrosecond;
constexpr Nanos kBatchTime =
    2 * kMillisecond;  // of the data plane, with as many hosts; and 10 GB/s
constexpr double kBytesPerNano = 10;
constexpr size_t kFrameBytes = 40 + 32;  // around each message: header and MAC
constexpr size_t kSideBytes = 1 << 17;   // of a log: memory is what a large job has least of
constexpr int64_t kElements = 160'000;   // of a tensor, about: 100 MB a step

class Training {
 public:
  explicit Training(const TrainingOptions& options);
  TrainingReport Run();

 private:
  enum class What : uint32_t { kTurn, kUp, kDown, kBatchEnd };
  struct Event {
    Nanos time;
    int place;  // a rank where it happens
    uint64_t sequence;
    What what;
    int who;        // a rank; kUp, kDown: the leader at the lower end; kBatchEnd: a host
    uint32_t with;  // kUp, kDown: the message
    bool operator>(const Event& other) const {
      return std::tie(time, place, sequence) > std::tie(other.time, other.place, other.sequence);
    }
  };
  struct Batch {
    std::vector<Token> tokens;
    int begun = 0;
  };
  struct RankState {
    RankState(Rank rank, int world) : member(rank, world) {}
    Member member;
    std::unique_ptr<HostsBus> bus;
    int step = -1;
    std::vector<Token> order;  // of this step
    size_t submitted = 0;
    Nanos next_burst = 0;
    std::vector<bool> done;  // by token
    size_t left = 0;         // of the step's
    size_t awaited = 0;      // up to here in `order` nothing is missing
    uint64_t launched = 0;   // batches
    uint64_t ended = 0;
    uint64_t digest = 0;
    int ranks_left = 0;
    Nanos turn_at = kForever;
  };
  class Carrier;

  void Boot();
  void At(Nanos time, Rank place, What what, int who, uint32_t with = 0) {
    events_.push({time, place, sequence_++, what, who, with});
  }
  Nanos Delay(Nanos typical) {
    return static_cast<Nanos>(random_() % static_cast<uint64_t>(typical)) + typical / 2;
  }
  void Error(std::string text) {
    if (report_.errors.size() < 10) report_.errors.push_back(std::move(text));
  }
  void ScheduleTurn(Rank rank, Nanos time);
  void Turn(Rank rank);
  void Work(Rank rank, RankState& state);
  void BeginStep(Rank rank, RankState& state);
  // How long the rank takes for something, of which its host takes the greater part of the jitter.
  Nanos Compute(Nanos typical, Rank rank) {
    return static_cast<Nanos>(static_cast<double>(typical) *
                              slowness_[topology_.ranks[rank].host]) +
           Delay(kRankJitter);
  }

  void OnLaunch(Rank rank, RankState& state, const Launch& launch);
  void BeginBatch(uint64_t number);
  void EndBatch(int host);
  void Count(Rank parent, size_t bytes);
  uint32_t Keep(std::string message);

  const TrainingOptions options_;
  std::mt19937_64 random_;
  Nanos now_ = 0;
  uint64_t sequence_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  std::vector<std::string> messages_;
  std::vector<uint32_t> free_messages_;

  std::vector<SpecPtr> specs_;  // by token
  std::shared_ptr<const LeaderTree> leaders_;
  Topology topology_;
  std::vector<std::unique_ptr<testing::LogMemory>> log_memory_;  // by host
  std::vector<std::unique_ptr<Carrier>> carriers_;
  std::vector<std::unique_ptr<RankState>> ranks_;
  std::deque<Batch> batches_;       // those that have not ended everywhere
  uint64_t first_batch_ = 0;        // the number of the first of them
  std::vector<uint64_t> ended_on_;  // by host: batches
  std::vector<double> slowness_;    // by host
  int steps_begun_ = 0;             // one more when ranks leave
  TrainingReport report_;
};

// Carries messages with a delay and in order, as TCP does.
class Training::Carrier : public Courier {
 public:
  Carrier(Training* training, Rank leader)
      : training_(training),
        leader_(leader),
        parent_(training->leaders_->ParentOf(leader)),
        children_(training->leaders_->ChildrenOf(leader)) {}

  void SendEventsUp(std::string packed) override {
    training_->Count(parent_, packed.size());
    up_at_ = std::max(up_at_, training_->now_ + training_->Delay(kMessageDelay));
    training_->At(up_at_, parent_, What::kUp, leader_, training_->Keep(std::move(packed)));
  }
  void SendPlanDown(const std::string& packed) override {
    for (const Rank child : children_) {
      training_->Count(leader_, packed.size());
      Nanos& at = training_->carriers_[training_->topology_.ranks[child].host]->down_at_;
      at = std::max(at, training_->now_ + training_->Delay(kMessageDelay));
      training_->At(at, child, What::kDown, child, training_->Keep(packed));
    }
  }

 private:
  Training* const training_;
  const Rank leader_;
  const Rank parent_;
  const std::vector<Rank> children_;
  Nanos up_at_ = 0;
  Nanos down_at_ = 0;  // from the parent
};

Training::Training(const TrainingOptions& options) : options_(options), random_(options.seed) {
  for (int t = 0; t < options.tensors; ++t) {
    Signature signature;
    signature.kind = OpKind::kAllreduce;
    signature.reduce_op = ReduceOp::kSum;
    signature.parts.push_back(
        {DType::kFloat32, Shape({kElements / 2 + static_cast<int64_t>(random_() % kElements)})});
    specs_.push_back(MakeSpec(kWorldSet, absl::StrCat("layers.", t, ".weight"), signature));
  }
  Boot();
  for (Rank rank = 0; rank < options.ranks; ++rank) ScheduleTurn(rank, Delay(kMillisecond));
}

// Who is where, who reports to whom; every leader proves itself to rank 0 and then to the one
// above it, and both to it.
void Training::Boot() {
  std::vector<std::string> host_ids;
  for (Rank rank = 0; rank < options_.ranks; ++rank) {
    host_ids.push_back(absl::StrCat("host", rank / options_.ranks_per_host));
  }
  topology_ = MakeTopology(host_ids);
  std::vector<std::vector<Rank>> hosts;
  for (const HostPlace& host : topology_.hosts) hosts.push_back(host.ranks);
  leaders_ = std::make_shared<LeaderTree>(hosts, options_.fan_out);
  const SessionScope scope = {std::string(32, 's'), "training/", 1};
  const auto meet = [&](Rank self, Rank peer) {
    Nonce nonce = {};
    memcpy(nonce.data(), &self, sizeof self);
    Handshake client = Handshake::Client(scope, self, peer, nonce);
    Handshake server = Handshake::Server(scope, peer, nonce);
    std::string said = client.Begin();
    for (bool of_client = true; !said.empty(); of_client = !of_client) {
      if (peer == 0) {
        ++report_.boot.messages;
        report_.boot.bytes += said.size();
      }
      absl::StatusOr<std::string> answer = (of_client ? server : client).Receive(said);
      if (!answer.ok())
        return Error(absl::StrCat("leader ", self, ": ", answer.status().message()));
      said = *std::move(answer);
    }
    if (!client.done() || !server.done()) Error(absl::StrCat("leader ", self, " has not arrived"));
  };
  CoordinatorOptions coordinator;
  coordinator.world_size = options_.ranks;
  coordinator.leaders = leaders_;
  for (const std::vector<Rank>& host : hosts) {
    const Rank leader = host.front();
    if (leader != 0) {
      meet(leader, 0);
      if (leaders_->ParentOf(leader) != 0) meet(leader, leaders_->ParentOf(leader));
    }
    carriers_.push_back(std::make_unique<Carrier>(this, leader));
    LogLayout layout = LogLayout::For(static_cast<int>(host.size()));
    layout.side_bytes = kSideBytes;
    log_memory_.push_back(std::make_unique<testing::LogMemory>(layout));
    void* const memory = log_memory_.back()->data();
    for (size_t local = 0; local < host.size(); ++local) {
      ranks_.push_back(std::make_unique<RankState>(host[local], options_.ranks));
      ranks_.back()->bus = std::make_unique<HostsBus>(
          std::make_unique<HostLog>(memory, layout, static_cast<int>(local)), host, host[local],
          coordinator, [this](Rank whom) { ScheduleTurn(whom, now_ + Delay(kWakeDelay)); },
          carriers_.back().get());
      ranks_.back()->done.resize(options_.tensors);
    }
  }
  ended_on_.resize(hosts.size());
  for (size_t host = 0; host < hosts.size(); ++host) {
    slowness_.push_back(1 + kHostJitter * static_cast<double>(random_() % 1'000) / 1'000);
  }
  report_.connections = static_cast<int>(leaders_->ChildrenOf(0).size());
  report_.depth = leaders_->depth();
}

void Training::Count(Rank parent, size_t bytes) {
  if (parent != 0) return;
  Traffic& traffic = steps_begun_ > options_.steps ? report_.shutdown
                     : steps_begun_ > 1            ? report_.later_steps
                                                   : report_.first_step;
  ++traffic.messages;
  traffic.bytes += bytes + kFrameBytes;
}

uint32_t Training::Keep(std::string message) {
  if (free_messages_.empty()) {
    messages_.push_back(std::move(message));
    return static_cast<uint32_t>(messages_.size() - 1);
  }
  const uint32_t index = free_messages_.back();
  free_messages_.pop_back();
  messages_[index] = std::move(message);
  return index;
}

void Training::ScheduleTurn(Rank rank, Nanos time) {
  RankState& state = *ranks_[rank];
  time = (time + kGrain - 1) / kGrain * kGrain;
  if (time >= state.turn_at) return;
  state.turn_at = time;
  At(time, rank, What::kTurn, rank);
}

void Training::Turn(Rank rank) {
  ++report_.turns;
  RankState& state = *ranks_[rank];
  Plan plan;
  std::vector<Action> actions;
  for (bool moved = true; moved;) {
    moved = false;
    Work(rank, state);
    if (state.bus->TakeDone(kWorldSet, state.member.completed_on(kWorldSet))) {
      state.member.AnnounceDone(kWorldSet);
    }
    while (const ControlEvent* event = state.member.Next()) {
      const absl::StatusOr<bool> sent = state.bus->Send(*event);
      if (!sent.ok()) return Error(absl::StrCat("rank ", rank, ": ", sent.status().message()));
      if (!*sent) break;
      state.member.Pop();
      moved = true;
    }
    plan.clear();
    const absl::StatusOr<bool> read = state.bus->Poll(now_, &plan);
    if (!read.ok()) return Error(absl::StrCat("rank ", rank, ": ", read.status().message()));
    moved |= *read;
    actions.clear();
    for (const PlanItem& item : plan) {
      const absl::Status applied = state.member.Apply(item, &actions);
      if (!applied.ok()) return Error(absl::StrCat("rank ", rank, ": ", applied.message()));
    }
    for (const Action& action : actions) {
      if (const auto* launch = std::get_if<Launch>(&action)) {
        OnLaunch(rank, state, *launch);
      } else if (std::holds_alternative<Left>(action)) {
        ++state.ranks_left;
      } else {
        Error(absl::StrCat("rank ", rank, " has something else to do than to train"));
      }
    }
  }
  state.bus->BeforeSleep();
  std::vector<std::string> reports;
  const absl::Status look = state.bus->CheckDeadlines(now_, &reports).status();
  if (!look.ok()) Error(absl::StrCat("rank ", rank, ": ", look.message()));
  for (std::string& report : reports) Error(std::move(report));
  if (state.next_burst > now_) ScheduleTurn(rank, state.next_burst);
}

// The program on this rank: backward passes, each of which waits for its tensors at its end.
void Training::Work(Rank rank, RankState& state) {
  if (state.step == options_.steps) return;
  if (state.left == 0) {
    steps_begun_ = std::max(steps_begun_, ++state.step + 1);
    if (state.step == options_.steps) {
      state.member.AnnounceLeave();
      return;
    }
    BeginStep(rank, state);
  }
  if (state.submitted < state.order.size()) {
    if (now_ < state.next_burst) return;
    for (int i = 0; i < kBurst && state.submitted < state.order.size(); ++i) {
      const Token token = state.order[state.submitted++];
      state.member.Submit(token, specs_[token], {}, false);
    }
    state.next_burst = now_ + Compute(kBetweenBursts, rank);
    if (state.submitted < state.order.size()) return;
    state.next_burst = 0;
    state.awaited = 0;
  }
  while (state.awaited < state.order.size() && state.done[state.order[state.awaited]]) {
    ++state.awaited;
  }
  if (state.awaited < state.order.size()) state.member.MarkWaited(state.order[state.awaited]);
}

void Training::BeginStep(Rank rank, RankState& state) {
  state.order.resize(specs_.size());
  for (size_t t = 0; t < specs_.size(); ++t)
    state.order[t] = static_cast<Token>(specs_.size() - 1 - t);
  // Here and there two change places.
  for (size_t t = random_() % 16; t + 1 < state.order.size(); t += 2 + random_() % 16) {
    std::swap(state.order[t], state.order[t + 1]);
  }
  state.done.assign(specs_.size(), false);
  state.left = specs_.size();
  state.submitted = 0;
  state.next_burst = now_ + Compute(kForward, rank);
}

void Training::OnLaunch(Rank rank, RankState& state, const Launch& launch) {
  if (launch.number != state.launched || launch.lane != kWorldSet) {
    return Error(absl::StrCat("rank ", rank, ": batch ", launch.number, " is out of order"));
  }
  const size_t index = launch.number - first_batch_;
  if (index == batches_.size()) {
    ++report_.batches;
    batches_.emplace_back();
    for (const LaunchItem& item : launch.items) batches_.back().tokens.push_back(item.token);
  }
  const std::vector<Token>& tokens = batches_[index].tokens;
  bool same = tokens.size() == launch.items.size();
  for (size_t i = 0; same && i < tokens.size(); ++i) {
    same = launch.items[i].token == tokens[i];
    state.digest = Mix(state.digest, launch.items[i].id);
  }
  if (!same) return Error(absl::StrCat("rank ", rank, ": another batch ", launch.number));
  if (state.launched++ == state.ended) BeginBatch(launch.number);
}

void Training::BeginBatch(uint64_t number) {
  Batch& batch = batches_[number - first_batch_];
  if (++batch.begun < options_.ranks) return;
  double bytes = 0;
  for (const Token token : batch.tokens) {
    bytes += 4.0 * static_cast<double>(specs_[token]->signature.parts[0].shape.elements());
  }
  const Nanos end = now_ + kBatchTime + static_cast<Nanos>(bytes / kBytesPerNano);
  for (size_t host = 0; host < ended_on_.size(); ++host) {
    At(end + Delay(50 * kMicrosecond), topology_.hosts[host].ranks.front(), What::kBatchEnd,
       static_cast<int>(host));
  }
}

void Training::EndBatch(int host) {
  const uint64_t number = ended_on_[host]++;
  const Batch& batch = batches_[number - first_batch_];
  for (const Rank rank : topology_.hosts[host].ranks) {
    RankState& state = *ranks_[rank];
    ++state.ended;
    state.member.CompletedBatch(kWorldSet);
    for (const Token token : batch.tokens) state.done[token] = true;
    state.left -= batch.tokens.size();
    report_.operations += batch.tokens.size();
    if (state.launched > state.ended) BeginBatch(state.ended);
    ScheduleTurn(rank, now_);
  }
  while (!batches_.empty() && std::all_of(ended_on_.begin(), ended_on_.end(),
                                          [&](uint64_t ended) { return ended > first_batch_; })) {
    batches_.pop_front();
    ++first_batch_;
  }
}

TrainingReport Training::Run() {
  while (!events_.empty() && report_.errors.empty()) {
    const Event event = events_.top();
    events_.pop();
    now_ = event.time;
    absl::Status status;
    switch (event.what) {
      case What::kTurn:
        if (ranks_[event.who]->turn_at != event.time) break;  // overtaken by an earlier one
        ranks_[event.who]->turn_at = kForever;
        Turn(event.who);
        break;
      case What::kUp: {
        const Rank parent = leaders_->ParentOf(event.who);
        status = ranks_[parent]->bus->DeliverEvents(messages_[event.with], event.who, now_);
        free_messages_.push_back(event.with);
        ScheduleTurn(parent, now_);
        break;
      }
      case What::kDown:
        status = ranks_[event.who]->bus->DeliverPlan(std::move(messages_[event.with]));
        free_messages_.push_back(event.with);
        ScheduleTurn(event.who, now_);
        break;
      case What::kBatchEnd:
        EndBatch(event.who);
    }
    if (!status.ok()) Error(absl::StrCat("leader ", event.who, ": ", status.message()));
  }
  report_.virtual_seconds = static_cast<double>(now_) / kSecond;
  report_.digest = ranks_[0]->digest;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const RankState& state = *ranks_[rank];
    if (state.digest != report_.digest)
      Error(absl::StrCat("rank ", rank, " executed other things"));
    if (state.step == options_.steps && state.ranks_left == options_.ranks) continue;
    Error(absl::StrCat("rank ", rank, " stopped at step ", state.step, ", ", state.left,
                       " operations to go, and saw ", state.ranks_left, " ranks leave"));
  }
  return report_;
}

}  // namespace

TrainingReport RunTraining(const TrainingOptions& options) {
  return Training(options).Run();
}

}  // namespace rueda::sim
