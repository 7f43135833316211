// The whole negotiation of a host: each rank has a member and, over the log that they share, a
// replica of the coordinator. All that the engines of these ranks do between a submission and its
// launch but for the requests themselves; in one thread, so nobody waits. An iteration is of all
// ranks together. "200x2": 200 tensors of 2 ranks.
#include <memory>

#include "controller/bus/log_bus.h"
#include "controller/negotiation/member.h"
#include "core/base/check.h"
#include "test/bench/micro/micro.h"
#include "test/bench/micro/specs.h"
#include "test/support/log_memory.h"

namespace rueda::micro {
namespace {

class OneRank {
 public:
  OneRank(Rank rank, int tensors, const CoordinatorOptions& options,
          const testing::LogMemory& memory)
      : member_(rank, options.world_size),
        bus_(std::make_unique<HostLog>(memory.data(), memory.layout(), rank), rank, options,
             [](Rank) {}),
        specs_(Gradients(tensors)) {}

  void SubmitAll() {
    for (size_t i = 0; i < specs_.size(); ++i) {
      member_.Submit(static_cast<Token>(i), specs_[i], {}, i + 1 == specs_.size());
    }
    while (const ControlEvent* event = member_.Next()) {
      RUEDA_CHECK(*bus_.Send(*event));
      member_.Pop();
    }
  }
  // Gives how many tensors were launched.
  size_t Read() {
    plan_.clear();
    RUEDA_CHECK(bus_.Poll(0, &plan_).ok());
    actions_.clear();
    for (const PlanItem& item : plan_) RUEDA_CHECK(member_.Apply(item, &actions_).ok());
    size_t launched = 0;
    for (const Action& action : actions_) {
      launched += std::get<Launch>(action).items.size();
      member_.CompletedBatch(kWorldSet);
    }
    return launched;
  }

 private:
  Member member_;
  LogBus bus_;
  const std::vector<SpecPtr> specs_;
  Plan plan_;
  std::vector<Action> actions_;
};

class Host {
 public:
  Host(int tensors, int ranks)
      : tensors_(static_cast<size_t>(tensors)), memory_(testing::LayoutOf(ranks)) {
    CoordinatorOptions options;
    options.world_size = ranks;
    for (Rank rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<OneRank>(rank, tensors, options, memory_));
    }
  }

  void operator()() {
    for (const auto& rank : ranks_) rank->SubmitAll();
    for (const auto& rank : ranks_) RUEDA_CHECK(rank->Read() == tensors_);
  }

 private:
  const size_t tensors_;
  const testing::LogMemory memory_;
  std::vector<std::unique_ptr<OneRank>> ranks_;
};

}  // namespace

void AddNegotiation() {
  Add("negotiation/1x2", [] { return Host(1, 2); });
  Add(
      "negotiation/1x8", [] { return Host(1, 8); }, 256);
  Add(
      "negotiation/200x2", [] { return Host(200, 2); }, 64);
}

}  // namespace rueda::micro
