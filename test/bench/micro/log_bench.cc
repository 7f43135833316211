// Events as entries of the log, written and read by one rank; and the messages between hosts.
#include <utility>

#include "controller/bus/log_codec.h"
#include "controller/protocol/codec.h"
#include "core/base/check.h"
#include "test/bench/micro/micro.h"
#include "test/bench/micro/specs.h"
#include "test/support/log_memory.h"

namespace rueda::micro {
namespace {

class Passing {
 public:
  explicit Passing(Announcement announcement) : event_{0, Announced{std::move(announcement)}} {}

  void operator()() {
    RUEDA_CHECK(*AppendEvent(event_, &log_));
    RUEDA_CHECK(*log_.Read(&entry_));
    const absl::StatusOr<ControlEvent> event = DecodeLogEvent(entry_, ranks_);
    RUEDA_CHECK(event.ok());
  }

 private:
  const ControlEvent event_;
  const std::vector<Rank> ranks_ = {0};
  const testing::LogMemory memory_{testing::LayoutOf(1)};
  HostLog log_{memory_.data(), memory_.layout(), 0};
  LogEntry entry_;
};

// An announcement by id, and one by all that a first use carries.
Announcement ById() {
  Announcement announcement;
  announcement.id = 0x10007;
  return announcement;
}
Announcement BySpec() {
  Announcement announcement;
  announcement.spec = Gradients(1)[0];
  return announcement;
}

Plan PlanOf(int tensors) {
  Order order;
  for (int i = 0; i < tensors; ++i) order.batch.push_back({0x10000u + i, 0, {}});
  return {order};
}

}  // namespace

void AddLog() {
  Add("log/by_id", [] { return Passing(ById()); });
  Add("log/by_spec", [] { return Passing(BySpec()); });
  Add(
      "codec/plan/200",
      [] {
        return [plan = PlanOf(200), read = Plan()]() mutable {
          read.clear();
          for (const std::string& packed : PackPlan(plan, 1 << 20)) {
            RUEDA_CHECK(UnpackPlan(packed, &read).ok());
          }
        };
      },
      64);
}

}  // namespace rueda::micro
