// The coordinator by itself: all ranks announce tensors that have ids, one rank after the other,
// and the last announcement says that somebody waits. "200x64": 200 tensors of 64 ranks.
#include "controller/negotiation/coordinator.h"

#include "core/base/check.h"
#include "test/bench/micro/micro.h"
#include "test/bench/micro/specs.h"

namespace rueda::micro {
namespace {

class Ordering {
 public:
  Ordering(int tensors, int ranks) : ranks_(ranks), coordinator_(Options(ranks)) {
    const std::vector<SpecPtr> specs = Gradients(tensors);
    for (Rank rank = 0; rank < ranks; ++rank) {
      for (const SpecPtr& spec : specs) Announce(rank, kNoTensor, spec, spec == specs.back());
    }
    for (const PlanItem& item : plan_) {
      if (const auto* define = std::get_if<Define>(&item)) ids_.push_back(define->id);
    }
  }

  void operator()() {
    plan_.clear();
    done_ = static_cast<uint16_t>(coordinator_.OrderedOn(kWorldSet));
    for (Rank rank = 0; rank < ranks_; ++rank) {
      for (const TensorId id : ids_) Announce(rank, id, nullptr, id == ids_.back());
    }
    RUEDA_CHECK(coordinator_.pending() == 0 && !coordinator_.HasOpenBatch(kWorldSet));
  }

 private:
  static CoordinatorOptions Options(int ranks) {
    CoordinatorOptions options;
    options.world_size = ranks;
    return options;
  }
  void Announce(Rank rank, TensorId id, const SpecPtr& spec, bool waited) {
    event_.rank = rank;
    Announcement& announcement = std::get<Announced>(event_.what).announcement;
    announcement.id = id;
    announcement.spec = spec;
    announcement.waited = waited;
    announcement.done = done_;
    RUEDA_CHECK(coordinator_.Step(event_, 0, &plan_).ok());
  }

  const int ranks_;
  Coordinator coordinator_;
  std::vector<TensorId> ids_;
  uint16_t done_ = 0;  // everybody has completed what was ordered before
  ControlEvent event_{0, Announced{}};
  Plan plan_;
};

// Two ranks announce one name with unequal shapes, which have ids already.
class Mismatch {
 public:
  Mismatch() : coordinator_({.world_size = 2}) {
    for (Rank rank = 0; rank < 2; ++rank) {
      Announcement announcement;
      announcement.spec = MakeSpec(kWorldSet, "layer0.weight", Gradient(1'024 + rank));
      Step({rank, Announced{announcement}});
      announcement.id = coordinator_.tensors().Find(*announcement.spec);
      announcement.spec = nullptr;
      events_.push_back({rank, Announced{announcement}});
    }
  }

  void operator()() {
    plan_.clear();
    for (const ControlEvent& event : events_) Step(event);
    RUEDA_CHECK(std::holds_alternative<Reject>(plan_.back()));
  }

 private:
  void Step(const ControlEvent& event) { RUEDA_CHECK(coordinator_.Step(event, 0, &plan_).ok()); }

  Coordinator coordinator_;
  std::vector<ControlEvent> events_;
  Plan plan_;
};

}  // namespace

void AddCoordinator() {
  Add("coordinator/1x2", [] { return Ordering(1, 2); });
  Add(
      "coordinator/200x2", [] { return Ordering(200, 2); }, 64);
  Add(
      "coordinator/200x64", [] { return Ordering(200, 64); }, 8);
  Add(
      "coordinator/mismatch/1x2", [] { return Mismatch(); }, 256);
}

}  // namespace rueda::micro
