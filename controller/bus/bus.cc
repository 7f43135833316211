#include "controller/bus/bus.h"

#include <algorithm>
#include <atomic>

namespace rueda {

void RanksConcerned(const PlanItem* begin, const PlanItem* end, const ProcessSetTable& sets,
                    absl::Span<const Rank> ranks, std::vector<bool>* concerned) {
  concerned->assign(ranks.size(), false);
  const auto mark = [&](auto concerns) {
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (concerns(ranks[i])) (*concerned)[i] = true;
    }
  };
  for (const PlanItem* item = begin; item != end; ++item) {
    if (const auto* order = std::get_if<Order>(item)) {
      if (order->to >= 0 && order->from >= 0) {
        mark([&](Rank rank) { return rank == order->from || rank == order->to; });
      } else if (const ProcessSet* set = sets.Find(order->lane)) {
        mark([&](Rank rank) { return set->Contains(rank); });
      }
    } else if (const auto* reject = std::get_if<Reject>(item)) {
      mark([&](Rank rank) {
        return std::binary_search(reject->ranks.begin(), reject->ranks.end(), rank);
      });
    } else if (const auto* told = std::get_if<Told>(item)) {
      mark([&](Rank rank) { return rank == told->rank; });
    } else if (!std::holds_alternative<Define>(*item) && !std::holds_alternative<Forget>(*item)) {
      concerned->assign(ranks.size(), true);
      return;
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
