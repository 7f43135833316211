// A rank's half of the negotiation by itself: tensors that have ids are submitted, announced and
// ordered, all in one batch.
#include "controller/negotiation/member.h"

#include "core/base/check.h"
#include "test/bench/micro/micro.h"
#include "test/bench/micro/specs.h"

namespace rueda::micro {
namespace {

class Replay {
 public:
  explicit Replay(int tensors) : submitted_(Gradients(tensors)) {
    Order order;
    for (const SpecPtr& spec : Gradients(tensors)) {
      const TensorId id = member_.tensors().NextId();
      RUEDA_CHECK(member_.Apply(Define{id, spec}, &actions_).ok());
      order.batch.push_back({id, 0, {}});
    }
    order_ = order;
  }

  void operator()() {
    for (size_t i = 0; i < submitted_.size(); ++i) {
      member_.Submit(static_cast<Token>(i), submitted_[i], {}, i + 1 == submitted_.size());
    }
    while (member_.Next() != nullptr) member_.Pop();
    actions_.clear();
    RUEDA_CHECK(member_.Apply(order_, &actions_).ok());
    member_.CompletedBatch(kWorldSet);
  }

 private:
  Member member_{0, 2};
  const std::vector<SpecPtr> submitted_;
  PlanItem order_;
  std::vector<Action> actions_;
};

}  // namespace

void AddMember() {
  Add("member/1", [] { return Replay(1); });
  Add(
      "member/200", [] { return Replay(200); }, 64);
}

}  // namespace rueda::micro
