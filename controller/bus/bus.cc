#include "controller/bus/bus.h"

#include <atomic>

namespace rueda {

void RanksConcerned(const PlanItem* begin, const PlanItem* end, const ProcessSetTable& sets,
                    std::vector<bool>* by_rank) {
  by_rank->assign(sets.world_size(), false);
  for (const PlanItem* item = begin; item != end; ++item) {
    if (const auto* order = std::get_if<Order>(item)) {
      if (order->to >= 0 && order->from >= 0) {
        for (const Rank rank : {order->from, order->to}) {
          if (rank < sets.world_size()) (*by_rank)[rank] = true;
        }
      } else if (const ProcessSet* set = sets.Find(order->lane)) {
        for (const Rank rank : set->ranks) (*by_rank)[rank] = true;
      }
    } else if (const auto* reject = std::get_if<Reject>(item)) {
      for (const Rank rank : reject->ranks) {
        if (rank < sets.world_size()) (*by_rank)[rank] = true;
      }
    } else if (!std::holds_alternative<Define>(*item) && !std::holds_alternative<Forget>(*item)) {
      by_rank->assign(by_rank->size(), true);
    }
  }
}

void WakeBehindGap(HostLog* log, absl::Span<const Rank> ranks, Rank self, const WakeFn& wake) {
  if (!log->TakeFilledGap()) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (const Rank rank : ranks) {
    if (rank != self) wake(rank);
  }
}

}  // namespace rueda
